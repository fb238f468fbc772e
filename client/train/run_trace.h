// Writes the trace of a run for `train --trace`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "client/run/prepare.h"

namespace cleave {

// Throws UsageError if no file can be created at `path`.
void checkTracePath(const std::string& path);

// Fetches the servers' spans, joins them with the client's and writes the file. Call between
// batches, after the last traced step. Returns the value of `trace` in the run's summary. Throws
// RunError.
nlohmann::json writeRunTrace(const std::string& path, const PreparedRun& run,
                             ClientSession& session);

// Returns "steps 2 to 21 in trace.json; clock error at most 0.041 ms; open it in ui.perfetto.dev".
std::string sentenceOfTrace(const nlohmann::json& summary);

}  // namespace cleave
