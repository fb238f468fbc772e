// The Hello of a trial session: a run that leaves no records on the server (proto/PROTOCOL.md,
// "Trial").
#pragma once

#include <cstddef>

#include "client/run/prepare.h"

namespace cleave {

// The run spec for the server of this body, without the parts that a trial does not use. A trial
// works with any weights, so none are sent.
RunSpec trialSpec(const PreparedRun& run, std::size_t body = 0);

// The run's Hello for a trial with `spec`. `number` makes the trial's run id unique among the
// trials of the run, since the server may not yet have freed the previous one.
wire::Hello trialHello(const PreparedRun& run, const RunSpec& spec, unsigned number);

}  // namespace cleave
