// Places where a test can kill the process or make a call fail, set by the environment variable
//
//   CLEAVE_FAIL=NAME:N:ACTION[,…]     at the N-th time that NAME is reached: kill, enospc, eio
//
// Without the variable, a failpoint costs one load of a constant.
#pragma once

namespace cleave {

// `kill` ends the process as SIGKILL does; the others throw RunError "cannot-write". Any thread.
void failpoint(const char* name);
// The same for a system call: returns the errno to report instead of making the call, or 0.
int failingCall(const char* name);

}  // namespace cleave
