// Asks a server whether it would admit a run.
#pragma once

#include "client/run/prepare.h"
#include "proto/wire.pb.h"

namespace cleave {

// Opens a trial session with the settings of this body of the run and ends it at once. Returns the
// server's answer. A member of a cohort is compared with those that are connected. Throws RunError
// or UsageError with the server's refusal, or with the cause if it does not answer.
wire::HelloOk askForAdmission(PreparedRun& run, std::size_t body, const ServerAddress& address);

}  // namespace cleave
