// What the servers of a run can learn about the client's data.
#pragma once

#include <string>

namespace cleave {

struct PreparedRun;

// Two sentences, with a full stop: what can be learnt from which flow (docs/privacy.md), and how to
// measure it for this run.
std::string exposureText(const PreparedRun& run);

}  // namespace cleave
