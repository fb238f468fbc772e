// Places at which a test can end the process or let a call fail: the environment variable
//
//   CLEAVE_FAIL=NAME:N:ACTION[,…]     at the N-th time that NAME is reached: kill, enospc, eio
//
// Without the variable, a place costs one load of a constant.
#pragma once

namespace cleave {

// `kill` ends the process as SIGKILL does; the others throw RunError "cannot-write". Any thread.
void failpoint(const char* name);
// The same at a system call: the errno to return in its place, or 0.
int failingCall(const char* name);

}  // namespace cleave
