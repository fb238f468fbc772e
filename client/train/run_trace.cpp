#include "client/train/run_trace.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <filesystem>

#include "common/core/durable.h"
#include "common/core/environment.h"
#include "common/record/trace_file.h"

namespace cleave {

void checkTracePath(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(path) && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw UsageError("bad-value", "--trace " + path + ": cannot create a file there",
                   "give a file in an existing, writable folder");
}

nlohmann::json writeRunTrace(const std::string& path, const PreparedRun& run,
                             ClientSession& session) {
  const TraceWindow& window = session.trace()->window();
  const ClockSample clock = session.serverClock(0);
  const Blob blob = session.fetch(kTraceBody).front();
  const Trace server =
      traceFromServer(blob.bytes, window, run.plan.spec.microBatches, run.plan.place);
  const Trace client = session.trace()->trace();

  nlohmann::ordered_json about;
  about["software"] = softwareVersion();
  about["run"] = run.hello.run_id();
  about["first_step"] = window.first;
  about["last_step"] = window.last();
  about["spans"] = client.spans.size() + server.spans.size();
  about["dropped_spans"] = client.dropped + server.dropped;
  about["server_clock_ahead_seconds"] = static_cast<double>(clock.ahead) * 1e-9;
  about["clock_error_seconds"] = clock.roundTripSeconds / 2;
  writeFileDurably(path, joinTraces(client, server, clock).text(about));
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
