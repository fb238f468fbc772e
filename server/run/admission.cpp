#include "server/run/admission.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/core/units.h"

namespace cleave {
namespace {

// Estimated time until a session ends.
constexpr double kRetrySeconds = 5;

std::string listOf(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none" : list;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// `most`: the most that the run may ever need; a run that needs more never fits.
RunError tooLarge(const RunPlan& plan, std::size_t needed, std::size_t most,
                  const std::string& has) {
  const bool mayFit = needed <= most;
  const MemoryTerm largest = largestServerMemory(plan);
  return RunError(mayFit ? ErrorKind::run : ErrorKind::usage, "not-enough-memory",
                  "the run needs " + mebibytesText(needed) + " on the server, " + has,
                  std::string(largest.hint) + ": the largest part, " +
                      mebibytesText(static_cast<std::size_t>(std::min(largest.bytes, 0x1p62))) +
                      ", is for " + largest.purpose,
                  mayFit ? kRetrySeconds : 0)
      .about("train.batch");
}

std::size_t leftOf(std::size_t all, std::size_t used) { return all - std::min(all, used); }

}  // namespace

UsageError othersRun(const std::string& runId) {
  return UsageError("others-run", "the run " + runId + " belongs to another identity",
                    "use another run.name");
}

Admission::Ticket::Ticket(Admission& admission, std::string identity, std::size_t bytes)
    : admission_(admission), identity_(std::move(identity)), bytes_(bytes) {
  ++admission_.sessions_;
  admission_.bytes_ += bytes_;
  Used& used = admission_.used_[identity_];
  ++used.sessions;
  used.bytes += bytes_;
}

Admission::Ticket::~Ticket() {
  assert(admission_.sessions_ > 0 && admission_.bytes_ >= bytes_);
  --admission_.sessions_;
  admission_.bytes_ -= bytes_;
  Used& used = admission_.used_[identity_];
  assert(used.sessions > 0 && used.bytes >= bytes_);
  --used.sessions;
  used.bytes -= bytes_;
  if (used.sessions == 0) admission_.used_.erase(identity_);
}

Admission::Used Admission::usedBy(const std::string& identity) const {
  const auto found = used_.find(identity);
  return found == used_.end() ? Used{} : found->second;
}

void Admission::checkModel(const std::string& identity, const std::string& model) const {
  const auto& allowed = settings_.allowedModels;
  if (!has(allowed, model)) {
    throw UsageError("model-not-allowed", "this server does not allow the model " + model,
                     "use one of " + listOf(allowed) +
                         ", or ask the server's operator to add it to models.allow");
  }
  const auto& own = access_.of(identity).models;
  if (!own || has(*own, model)) return;
  throw UsageError("model-not-allowed",
                   "this server does not allow the model " + model + " to " + identity,
                   "use one of " + listOf(*own) +
                       ", or ask the server's operator to add it to models in the access file");
}

void Admission::refuseOthersRun(const std::string& identity, const std::string& runId) const {
  access_.checkRun(identity, runId);
  // Throws if the store cannot be read: refusing the run is safer than exposing another identity's
  // run.
  for (const auto& folder : std::filesystem::directory_iterator(settings_.store)) {
    const bool isOwn = folder.path().filename() == identity;
    if (!isOwn && std::filesystem::exists(folder.path() / runId)) throw othersRun(runId);
  }
}

void Admission::checkSessions(const std::string& identity) const {
  const auto refuse = [](const std::string& sentence, const char* limit) {
    throw RunError("too-many-sessions", sentence + " (" + limit + ")",
                   "retry when a session has ended", kRetrySeconds);
  };
  const auto& own = access_.of(identity).sessions;
  const std::uint32_t max = own.value_or(settings_.share.sessions);
  const bool isFull = usedBy(identity).sessions >= max;
  const std::string sentence =
      identity + " already has its maximum of " + std::to_string(max) + " sessions on this server";
  if (own && isFull) refuse(sentence, "sessions in its access file");
  if (sessions_ >= settings_.maxSessions) {
    refuse("this server already has its maximum of " + std::to_string(settings_.maxSessions) +
               " sessions",
           "limits.sessions in its configuration");
  }
  if (isFull) refuse(sentence, "limits.sessions_per_identity in its configuration");
}

// The number of runs is limited because each run leaves a folder with files, even if it is short.
void Admission::checkRuns(const std::string& identity, SteadyTime time) {
  constexpr std::chrono::hours kHour{1};
  const auto& own = access_.of(identity).runsPerHour;
  const std::uint32_t max = own.value_or(settings_.share.runsPerHour);
  for (auto& [name, begun] : begun_) {
    while (!begun.empty() && time - begun.front() >= kHour) begun.pop_front();
  }
  std::erase_if(begun_, [](const auto& entry) { return entry.second.empty(); });
  const auto found = begun_.find(identity);
  const std::size_t count = found == begun_.end() ? 0 : found->second.size();
  if (count < max) return;
  // The time until enough runs are more than an hour old to allow one more.
  const double retry =
      max == 0 ? 0 : std::ceil(secondsBetween(time, found->second[count - max] + kHour));
  throw RunError(
      "too-many-runs",
      identity + " has already started its maximum of " + std::to_string(max) +
          " runs in the last hour on this server (" +
          (own ? "runs_per_hour in its access file" : "limits.runs_per_hour in its configuration") +
          ")",
      "start fewer runs, or try again later", retry);
}

void Admission::checkMemory(const std::string& identity, const RunPlan& plan,
                            std::size_t needed) const {
  const auto& own = access_.of(identity).memoryBytes;
  const std::size_t ownLeft = own ? leftOf(*own, usedBy(identity).bytes) : needed;
  const std::size_t left = leftOf(settings_.memoryBytes, bytes_);
  // A run that can never fit is refused for good, even if there is no room now.
  const bool exceedsOwn = own && needed > *own;
  if (needed > left && !exceedsOwn) {
    throw tooLarge(plan, needed, settings_.memoryBytes,
                   "which has " + mebibytesText(left) + " left of " +
                       mebibytesText(settings_.memoryBytes) +
                       " (limits.memory_mib in its configuration)");
  }
  if (needed <= ownLeft) return;
  throw tooLarge(plan, needed, *own,
                 "where " + identity + " has " + mebibytesText(ownLeft) + " left of " +
                     mebibytesText(*own) + " (memory_mib in its access file)");
}

void Admission::checkRun(const std::string& identity, const std::string& runId,
                         const RunPlan& plan) const {
  checkModel(identity, plan.stage.model.name);
  refuseOthersRun(identity, runId);
}

std::unique_ptr<Admission::Ticket> Admission::admit(const std::string& identity,
                                                    const RunPlan& plan, std::size_t forMember,
                                                    SteadyTime time) {
  checkSessions(identity);
  const std::size_t needed =
      serverBytes(plan) + forMember + (settings_.allowCheckpoints ? snapshotBytes(plan) : 0);
  checkMemory(identity, plan, needed);
  checkRuns(identity, time);
  begun_[identity].push_back(time);
  return std::make_unique<Ticket>(*this, identity, needed);
}

std::unique_ptr<Admission::Ticket> Admission::admitMember(const std::string& identity,
                                                          const RunPlan& plan,
                                                          std::size_t forMember) {
  checkSessions(identity);
  checkMemory(identity, plan, forMember);
  return std::make_unique<Ticket>(*this, identity, forMember);
}

std::unique_ptr<Admission::Ticket> Admission::admitTrial(const std::string& identity,
                                                         const RunPlan& plan) {
  checkModel(identity, plan.stage.model.name);
  checkSessions(identity);
  const std::size_t needed = serverBytes(plan);
  checkMemory(identity, plan, needed);
  return std::make_unique<Ticket>(*this, identity, needed);
}

std::unique_ptr<Admission::Ticket> Admission::admitProbe(const std::string& identity) {
  checkSessions(identity);
  return std::make_unique<Ticket>(*this, identity, 0);
}

}  // namespace cleave
