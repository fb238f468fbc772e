#include "server/run_table.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "common/run/run_folder.h"

namespace cleave {
namespace {

// Until a fenced connection is gone: an estimate.
constexpr double kFenceSeconds = 1;

[[noreturn]] void refuseWait() {
  throw UsageError(
      "wait-not-allowed",
      "this server does not allow wait.F2 and wait.B2, which occupy its device without "
      "computing",
      "remove them from the configuration, or set wait.allowed=true at the server");
}

// The run id; several trials may have the same one. Run ids never contain '/'.
std::string keyOf(const RunRequest& request) {
  return request.isTrial() ? fmt::format("trial/{}", request.session) : request.runId();
}

}  // namespace

std::shared_ptr<ServedRun> RunTable::admit(RunRequest request,
                                           std::shared_ptr<Connection> connection) {
  checkRunId(request.runId());
  RunPlan plan = planRun(request.hello.run_spec());
  if (plan.wait.any() && !resources_.settings.allowWait) refuseWait();
  useDeviceCodecs(plan, resources_.compute);
  std::unique_ptr<Admission::Ticket> ticket;
  if (request.isTrial()) {
    ticket = admission_.admitTrial(request.identity, plan);
  } else {
    admission_.checkRun(request.identity, request.runId(), plan);
    refuseServed(request);
    ticket = admission_.admit(request.identity, plan);
  }
  const std::string key = keyOf(request);
  const auto run = std::make_shared<ServedRun>(resources_, std::move(request), std::move(plan),
                                               std::move(ticket), std::move(connection));
  runs_[key] = run;
  return run;
}

void RunTable::refuseServed(const RunRequest& request) const {
  const std::string& runId = request.runId();
  const auto found = runs_.find(runId);
  if (found == runs_.end()) return;
  ServedRun& served = *found->second;
  // Before anything is done to a served run, so that another identity cannot end it.
  if (served.request().identity != request.identity) throw othersRun(runId);
  const std::uint64_t generation = request.hello.generation();
  const std::uint64_t connected = served.request().hello.generation();
  if (generation < connected) {
    throw RunError("stale-generation",
                   fmt::format("generation {} of the run {} is older than the one connected, {}",
                               generation, runId, connected));
  }
  const bool isNewer = generation > connected;
  if (isNewer) served.fence();
  throw RunError("run-in-use", fmt::format("the run {} is connected to this server already", runId),
                 isNewer ? "try again: the older connection is being ended"
                         : "stop the other client first, or start a separate run",
                 isNewer ? kFenceSeconds : 0);
}

boost::asio::awaitable<void> RunTable::close(std::shared_ptr<ServedRun> run) {
  co_await run->close();
  runs_.erase(keyOf(run->request()));
}

void RunTable::completeRecords() {
  for (const auto& [key, run] : runs_) run->completeRecords();
}

}  // namespace cleave
