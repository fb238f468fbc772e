// Collects the values of a server's metrics.
#pragma once

#include "common/run/metrics.h"
#include "server/run/served_run.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"

namespace cleave {

// io thread.
Samples serverSamples(const RunResources& resources, const SessionContext& context,
                      const SessionTable& sessions);

}  // namespace cleave
