// Places where a test can kill the process or make a call fail, set by the environment variable
//
//   CLEAVE_FAIL=NAME:N:ACTION[,…]     action at the N-th call with NAME: kill, enospc or eio
//
// Without the variable, a failpoint costs one load of a constant.
#pragma once

namespace cleave {

// `kill` sends SIGKILL to the process; the other actions throw RunError "cannot-write". Any thread.
void failpoint(const char* name);
// A failpoint for a system call: returns the errno to report instead of making the call, or 0.
int failingCall(const char* name);

}  // namespace cleave
