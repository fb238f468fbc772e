#include "server/admission.h"

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

// When a session may have ended.
constexpr double kRetrySeconds = 5;
constexpr double kFenceSeconds = 1;  // until a fenced connection is gone

std::string mib(std::size_t bytes) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return std::to_string((bytes + kMiB - 1) / kMiB) + " MiB";
}

}  // namespace

Admission::Ticket::Ticket(Admission& admission, std::string runId, std::size_t bytes)
    : admission_(admission), runId_(std::move(runId)), bytes_(bytes) {
  admission_.bytes_ += bytes_;
}

Admission::Ticket::~Ticket() {
  admission_.runs_.erase(runId_);
  admission_.bytes_ -= bytes_;
}

void Admission::refuseConnected(const std::string& runId, std::uint64_t generation) {
  const auto found = runs_.find(runId);
  if (found == runs_.end()) return;
  const std::uint64_t connected = found->second.generation;
  if (generation < connected) {
    throw RunError("stale-generation", "generation " + std::to_string(generation) + " of the run " +
                                           runId + " is older than the one connected, " +
                                           std::to_string(connected));
  }
  if (generation > connected) found->second.fence();
  throw RunError("run-in-use", "the run " + runId + " is connected to this server already",
                 generation > connected ? "try again: the older connection is being ended"
                                        : "end it first, or begin a run of its own",
                 generation > connected ? kFenceSeconds : 0);
}

void Admission::checkSessions() const {
  if (runs_.size() < settings_.maxSessions) return;
  throw RunError("too-many-sessions",
                 "this server serves its " + std::to_string(settings_.maxSessions) +
                     " sessions already (limits.sessions in its configuration)",
                 "try again when one has ended", kRetrySeconds);
}

std::unique_ptr<Admission::Ticket> Admission::admitProbe(std::uint64_t session) {
  checkSessions();
  const std::string name = "probe/" + std::to_string(session);  // no run id has a '/'
  runs_[name] = {};
  return std::make_unique<Ticket>(*this, name, 0);
}

std::unique_ptr<Admission::Ticket> Admission::admit(const std::string& runId,
                                                    std::uint64_t generation, const RunPlan& plan,
                                                    std::function<void()> fence) {
  const std::string& model = plan.stage.model.name;
  const auto& allowed = settings_.allowedModels;
  if (std::find(allowed.begin(), allowed.end(), model) == allowed.end()) {
    std::string list;
    for (const std::string& name : allowed) list += (list.empty() ? "" : ", ") + name;
    throw UsageError("model-not-allowed", "this server does not allow the model " + model,
                     "it allows " + list + " (models.allow in its configuration)");
  }
  refuseConnected(runId, generation);
  checkSessions();
  const std::size_t needed = serverBytes(plan);
  const std::size_t left = settings_.memoryBytes - std::min(settings_.memoryBytes, bytes_);
  if (needed > left) {
    throw RunError(
        "not-enough-memory",
        "the run needs " + mib(needed) + " at the server, which has " + mib(left) + " left of " +
            mib(settings_.memoryBytes) + " (limits.memory_mib in its configuration)",
        "use a smaller batch, more micro-batches with fewer in flight, or a smaller body",
        needed <= settings_.memoryBytes ? kRetrySeconds : 0);
  }
  runs_[runId] = {generation, std::move(fence)};
  return std::make_unique<Ticket>(*this, runId, needed);
}

}  // namespace cleave
