#include "client/train/checkpointer.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/core/log.h"

namespace cleave {

Checkpointer::Checkpointer(Files& files, const std::string& runFolder,
                           const CheckpointSettings& settings, std::string fingerprint,
                           std::vector<RunCommit> commits, std::vector<Replica> servers,
                           std::function<void()> syncRecords,
                           std::function<void(const Saved&)> savedHere)
    : settings_(settings),
      servers_(std::move(servers)),
      syncRecords_(std::move(syncRecords)),
      savedHere_(std::move(savedHere)),
      checkpoints_(CheckpointStore(files, runFolder), std::move(fingerprint)),
      commits_(files, runFolder, std::move(commits), settings.keep) {}

Checkpointer::~Checkpointer() { finishWriting(); }

void Checkpointer::checkFailure() {
  const std::lock_guard lock(mutex_);
  if (settings_.mustSucceed && failure_) std::rethrow_exception(failure_);
}

bool Checkpointer::isDue(std::uint64_t step) {
  checkFailure();
  const std::lock_guard lock(mutex_);
  if (open_) return false;
  const bool byTime = settings_.everySeconds > 0 && secondsSince(last_) >= settings_.everySeconds;
  const bool bySteps = settings_.everySteps > 0 && step % settings_.everySteps == 0;
  return byTime || bySteps || isRequested_;
}

void Checkpointer::begin(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  open_ = Open{step, std::nullopt, std::vector<std::optional<std::string>>(servers_.size()), {}};
  isRequested_ = false;
  last_ = now();
}

std::uint64_t Checkpointer::lastCommit() const {
  const std::vector<std::uint64_t> steps = commits_.steps();
  return steps.empty() ? 0 : steps.front();
}

void Checkpointer::add(std::shared_ptr<PartSnapshot> part) {
  boost::asio::post(writer_, [this, part = std::move(part)] { write(*part); });
}

bool Checkpointer::Open::isDone() const {
  return client && std::all_of(servers.begin(), servers.end(),
                               [](const auto& digest) { return digest.has_value(); });
}

bool Checkpointer::Open::hasFailed() const {
  return client->empty() || std::any_of(servers.begin(), servers.end(),
                                        [](const auto& digest) { return digest->empty(); });
}

std::string Checkpointer::serverName(std::size_t server) const {
  return servers_.size() == 1 ? "server" : "server " + std::to_string(server + 1);
}

void Checkpointer::saved(std::size_t server, const Saved& saved) {
  {
    const std::lock_guard lock(mutex_);
    if (!open_ || open_->step != saved.step || open_->servers[server]) {
      throw ProtocolError("unexpected-message", "Saved of step " + std::to_string(saved.step) +
                                                    " arrived, but was not requested");
    }
    if (!servers_[server].isAlone() && saved.code.empty()) checkBody(server, saved);
    open_->servers[server] = saved.sha256;
  }
  if (!saved.code.empty())
    failed(saved.step, RunError(saved.code, serverName(server) + ": " + saved.sentence), server);
  boost::asio::post(writer_, [this] { finishIfDone(); });
}

void Checkpointer::checkBody(std::size_t server, const Saved& saved) {
  if (saved.body.empty()) {
    throw ProtocolError("bad-metadata", "a Saved of a replica lacks the digest of its weights");
  }
  const auto body = open_->bodies.try_emplace(server - servers_[server].rank, saved.body).first;
  if (body->second == saved.body) return;
  throw RunError("replicas-differ",
                 serverName(server) +
                     " has other weights than another replica of the body after "
                     "step " +
                     std::to_string(saved.step),
                 "use the same version of Cleave, device and processor for all replicas");
}

void Checkpointer::settle(double seconds, const std::function<bool()>& isOver) {
  constexpr std::chrono::milliseconds kLook{100};
  const SteadyTime start = now();
  std::unique_lock lock(mutex_);
  while (open_ && secondsSince(start) < seconds && !isOver()) changed_.wait_for(lock, kLook);
}

// ---- Writer thread ----

void Checkpointer::write(const PartSnapshot& part) {
  Saved own;
  own.step = part.state.engine.applied;
  try {
    const std::string digest = checkpoints_.write(part).sha256;
    // Another member may commit the checkpoint first, and this one then continues from it.
    if (savedHere_) syncRecords_();
    own.sha256 = digest;
  } catch (const Error& error) {
    failed(own.step, error);
    own.code = error.code();
    own.sentence = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    open_->client = own.sha256;
  }
  if (savedHere_) savedHere_(own);
  finishIfDone();
}

void Checkpointer::finishIfDone() {
  std::optional<RunCommit> whole;
  {
    const std::lock_guard lock(mutex_);
    if (!open_ || !open_->isDone()) return;
    if (!open_->hasFailed()) {
      whole = RunCommit{open_->step, *open_->client, {}};
      for (const auto& digest : open_->servers) whole->servers.push_back(*digest);
    }
  }
  if (whole) commit(*whole);
  std::vector<std::uint64_t> needed = keep();
  // Other members may have committed it, and removed older ones, even if this one could not.
  if (whole && savedHere_) needed.push_back(whole->step);
  removeExcept(needed);
  const std::lock_guard lock(mutex_);
  open_.reset();
  changed_.notify_all();
}

void Checkpointer::commit(const RunCommit& commit) {
  try {
    syncRecords_();
    commits_.add(commit);
  } catch (const Error& error) {
    return failed(commit.step, error);
  }
  bool hasRecovered = false;
  {
    const std::lock_guard lock(mutex_);
    failure_ = nullptr;
    hasRecovered = faults_.recovered();
  }
  if (hasRecovered) {
    processLog()->info("checkpoints are made again: the last one is of step {}", commit.step);
  } else {
    processLog()->debug("checkpoint of step {}", commit.step);
  }
}

// Removes all checkpoints that are no longer needed, including one that has just failed.
void Checkpointer::removeExcept(const std::vector<std::uint64_t>& needed) {
  try {
    checkpoints_.store().removeExcept(needed);
    removalFaults_.recovered();
  } catch (const Error& error) {
    processLog()->log(
        removalFaults_.isNew(error.code()) ? spdlog::level::warn : spdlog::level::debug,
        "old checkpoints cannot be removed: {}; later ones are tried too", error.what());
  }
}

// A fault that lasts would be reported with each checkpoint.
void Checkpointer::failed(std::uint64_t step, const Error& error,
                          std::optional<std::size_t> server) {
  const std::uint64_t last = lastCommit();
  const std::lock_guard lock(mutex_);
  const bool isNew =
      faults_.isNew(error.code() + (server ? " " + std::to_string(*server) : std::string()));
  processLog()->log(isNew ? spdlog::level::warn : spdlog::level::debug,
                    "no checkpoint of step {} [{}]: {}; after a crash, the run would continue from "
                    "step {}. The same fault is not reported again",
                    step, error.code(), error.what(), last);
  failure_ = std::make_exception_ptr(
      RunError(error.code(), error.what(), "free disk space, or set checkpoint.on_failure=warn"));
}

}  // namespace cleave
