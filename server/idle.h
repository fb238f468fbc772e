// For how long a session's client has done nothing although it had nothing to wait for. io thread
// only.
#pragma once

#include "common/core/clock.h"

namespace cleave {

class IdleClock {
 public:
  // Maximum seconds that one look counts: a process that was stopped must not end its sessions when
  // it continues.
  static constexpr double kMostSecondsPerLook = 2;

  explicit IdleClock(SteadyTime start) : last_(start) {}

  // Call it about once per second. `activity`: when the client last sent or was sent something
  // (Connection::lastActivity()). `waitsForServer`: the server has work to do for this session,
  // under way or queued behind that of other clients, for which the client may be waiting. Returns
  // the seconds for which the client has been idle.
  double look(SteadyTime time, SteadyTime activity, bool waitsForServer);

 private:
  SteadyTime last_;  // look
  double idle_ = 0;  // seconds
};

}  // namespace cleave
