// The trace of a run: `train --trace`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "client/prepare.h"

namespace cleave {

// Throws UsageError where no file can be made at `path`.
void checkTracePath(const std::string& path);

// Fetches the server's spans, joins them with ours and writes the file; between batches, after the
// last step of the window. Returns what the run's summary says of it. Throws RunError.
nlohmann::json writeRunTrace(const std::string& path, const PreparedRun& run,
                             ClientSession& session);

// "steps 2 to 21 in trace.json; the two clocks are known to 0.04 ms"
std::string sentenceOfTrace(const nlohmann::json& summary);

}  // namespace cleave
