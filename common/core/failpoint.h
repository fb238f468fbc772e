// Places at which a test can end the process or let a call fail: the environment variable
//
//   CLEAVE_FAIL=NAME:N:ACTION[,…]     at the N-th time that NAME is reached: kill, throw
//
// Without the variable, a place costs one load of a constant.
#pragma once

namespace cleave {

// `kill` ends the process as SIGKILL does; `throw` throws RunError "cannot-write". Any thread.
void failpoint(const char* name);

}  // namespace cleave
