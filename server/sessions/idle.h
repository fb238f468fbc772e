// Measures how long a session's client has been idle, excluding the time in which it waited for the
// server. io thread only.
#pragma once

#include "common/core/clock.h"

namespace cleave {

class IdleClock {
 public:
  // Maximum seconds that one call of look() adds, so that sessions do not end because the process
  // was suspended.
  static constexpr double kMaxSecondsPerLook = 2;

  explicit IdleClock(SteadyTime start) : last_(start) {}

  // Call it about once per second. `activity`: when the client last sent or received something
  // (Connection::lastActivity()). `waitsForServer`: whether the server has work for this session,
  // in progress or queued behind other clients' work. The client may be waiting for it. Returns the
  // seconds for which the client has been idle.
  double look(SteadyTime time, SteadyTime activity, bool waitsForServer);

 private:
  SteadyTime last_;  // the last call of look()
  double idle_ = 0;  // seconds
};

}  // namespace cleave
