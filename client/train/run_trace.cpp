#include "client/train/run_trace.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "common/core/durable.h"
#include "common/files/environment.h"
#include "common/record/trace_file.h"

namespace cleave {

using Json = nlohmann::ordered_json;

void checkTracePath(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError("bad-value", "--trace " + path + " is a folder", "give the name of a file");
  }
  checkCanWrite(path);
}

nlohmann::json writeRunTrace(const std::string& path, const PreparedRun& run,
                             ClientSession& session) {
  const TraceWindow& window = session.traces().front()->window();
  std::vector<ClockSample> clocks;  // before the answers to the Fetch are on the link
  for (std::size_t s = 0; s < session.serverCount(); ++s) clocks.push_back(session.serverClock(s));
  const std::vector<Blob> blobs = session.fetch(kTraceBody);
  std::vector<TracedLink> links;
  std::size_t spans = 0, dropped = 0;
  double error = 0;
  Json ahead = Json::array();
  for (std::size_t s = 0; s < blobs.size(); ++s) {
    const Place& place = run.bodies[s].place;
    TracedLink& link = links.emplace_back(
        TracedLink{place, session.traces()[s]->trace(),
                   traceFromServer(blobs[s].bytes, window, run.bodies[s].stage.microBatches, place),
                   clocks[s]});
    for (const Trace* trace : {&link.client, &link.server}) {
      spans += trace->spans.size();
      dropped += trace->dropped;
    }
    error = std::max(error, clocks[s].roundTripSeconds / 2);
    ahead.push_back(static_cast<double>(clocks[s].ahead) * 1e-9);
  }

  Json about;
  about["software"] = softwareVersion();
  about["run"] = run.hello.run_id();
  about["first_step"] = window.first;
  about["last_step"] = std::min(window.last(), run.totalSteps());
  about["spans"] = spans;
  about["dropped_spans"] = dropped;
  about["server_clock_ahead_seconds"] = links.size() == 1 ? ahead.front() : ahead;
  about["clock_error_seconds"] = error;
  writeFileDurably(path, joinTraces(links).text(about));
  about["file"] = path;
  return about;
}

std::string sentenceOfTrace(const nlohmann::json& summary) {
  const auto dropped = summary.at("dropped_spans").get<std::uint64_t>();
  return fmt::format(
      "steps {} to {} in {}; clock error at most {:.3f} ms{}; open it in ui.perfetto.dev",
      summary.at("first_step").get<std::uint64_t>(), summary.at("last_step").get<std::uint64_t>(),
      summary.at("file").get<std::string>(), 1e3 * summary.at("clock_error_seconds").get<double>(),
      dropped == 0 ? "" : fmt::format("; {} spans did not fit and are missing", dropped));
}

}  // namespace cleave
