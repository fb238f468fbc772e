#include "server/run/run_table.h"

#include <spdlog/fmt/fmt.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cassert>
#include <chrono>
#include <utility>

#include "common/core/printable.h"
#include "common/run/run_folder.h"
#include "server/store/last_connection.h"

namespace cleave {
namespace {

// Estimated time until a fenced connection or a parked run has ended.
constexpr double kFenceSeconds = 1;
constexpr double kParkedFenceSeconds = 0.1;
constexpr double kEdgeRetrySeconds = 0.1;

// Throws UsageError unless this server is the replica that the run needs.
void checkReplica(const RunRequest& request, const ReplicaGroup* group) {
  const RunSpec& spec = request.spec;
  if (spec.replicas == 1) return;
  const std::string asked = fmt::format("replica {} of {}", spec.replica, spec.replicas);
  if (group == nullptr) {
    throw UsageError(
        "no-replicas",
        "the run needs " + asked +
            " of its body here, but this server is not configured with replicas",
        "set replicas.hosts and replicas.rank in the configurations of all replicas, or "
        "give one address per body");
  }
  if (static_cast<std::uint32_t>(group->rank) != spec.replica ||
      group->hosts.size() != spec.replicas) {
    throw UsageError("wrong-replica",
                     fmt::format("the run needs {} of its body here, but this server is replica {} "
                                 "of {}",
                                 asked, group->rank, group->hosts.size()),
                     "give the address of each replica once, in the order of replicas.hosts, as in "
                     "--server A:4800+B:4800; if this order is right, correct this server's "
                     "replicas.rank");
  }
  if (request.hello.attempt().size() == kAttemptBytes && !request.isTrial()) return;
  throw ProtocolError("bad-metadata", "a Hello for a body with replicas has no attempt of " +
                                          std::to_string(kAttemptBytes) + " bytes, or is a trial");
}

// The key of a seat is its run id. Several trials may have the same run id, so their keys differ.
// Run ids never contain '/'.
std::string keyOf(const RunRequest& request) {
  return request.isTrial() ? fmt::format("trial/{}", request.session) : request.runId();
}

// The samples that the member announces: its own, or those of all in its plan.
std::uint64_t samplesOf(const wire::Member& member) {
  std::uint64_t planned = 0;
  for (const std::uint32_t each : member.plan().train_samples()) planned += each;
  for (const std::uint32_t each : member.plan().evaluation_samples()) planned += each;
  return std::max(planned, std::uint64_t{member.train_samples()} + member.evaluation_samples());
}

// Whether the plan has training samples of the member.
bool isInPlan(const RunRequest& request, const wire::CohortPlan& plan) {
  const auto number = static_cast<int>(memberNumber(request));
  return number < plan.train_samples_size() && plan.train_samples(number) > 0;
}

// `first`: the member that connected first; null: this one.
std::size_t memberBytesOf(const RunRequest& request, const RunRequest* first) {
  if (!request.spec.cohort.exists()) return 0;
  const wire::Member& member = request.hello.member();
  std::uint64_t samples = samplesOf(member);
  // Those in the plan of the first member are counted for it.
  if (first != nullptr && isInPlan(request, first->hello.member().plan())) {
    samples -= std::min(samples, samplesOf(first->hello.member()));
  }
  const std::size_t own = memberBytes(samples, member.share_values());
  // One of them sends its state, which has the same size for all.
  return first != nullptr ? own : own + cohortBytes(member.share_values(), member.state_bytes());
}

// Whether both are of one cohort, and of the part of its run that is computed here.
bool isOfCohort(const RunRequest& one, const RunRequest& other) {
  return one.spec.cohort.exists() && one.spec.cohort.id == other.spec.cohort.id &&
         one.spec.cutNumber == other.spec.cutNumber && one.spec.replica == other.spec.replica;
}

// The run in the account of usage. The ids of trials are unknown to users.
std::string accountOf(const RunRequest& request) {
  return request.isTrial() ? "" : request.runId();
}

}  // namespace

std::shared_ptr<Seat> RunTable::admit(RunRequest request) {
  checkRunId(request.runId());
  // Checked before the graph is parsed.
  if (!request.spec.graph.empty()) admission_.checkModel(request.identity, "graph");
  RunPlan plan = planRun(request.spec);
  checkEdges(request.hello, plan, resources_.settings.edges);
  plan.hasEdges = asksForEdges(request.hello);
  if (request.isTrial()) {  // has no folder, so samples are in memory
    const std::uint64_t used = kMaxTrialBatches * std::uint64_t{plan.maxBatch};
    plan.maxKeptSamples =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(plan.maxKeptSamples, used));
  } else {
    plan.samplesOnDisk = resources_.settings.samplesOnDisk;
  }
  checkReplica(request, resources_.replicas);
  useDeviceCodecs(plan, resources_.compute);
  std::unique_ptr<Admission::Ticket> ticket;
  if (request.isTrial()) {
    ticket = admission_.admitTrial(request.identity, plan);
  } else {
    admission_.checkRun(request.identity, request.runId(), plan);
    refuseServed(request);
    refuseClosing(request);
    if (const auto first = seatOfCohort(request)) return join(std::move(request), plan, first);
    ticket = reserve(request.identity, plan, memberBytesOf(request, nullptr));
  }
  const std::string key = keyOf(request);
  assert(!seats_.contains(key));
  auto run = std::make_shared<ServedRun>(resources_, std::move(request), std::move(plan),
                                         std::move(ticket), failedFunction(key));
  return seats_[key] = std::shared_ptr<Seat>(run, &run->owner());
}

std::function<void(std::exception_ptr)> RunTable::failedFunction(const std::string& key) {
  return [this, key](std::exception_ptr error) { parkedSeatFailed(key, std::move(error)); };
}

std::shared_ptr<Seat> RunTable::seatOfCohort(const RunRequest& request) const {
  const auto found = std::ranges::find_if(seats_, [&](const auto& each) {
    return !each.second->run().isClosing() && isOfCohort(each.second->request(), request);
  });
  return found == seats_.end() ? nullptr : found->second;
}

// Its records are still in use.
void RunTable::refuseClosing(const RunRequest& request) const {
  const auto isMeant = [&](const auto& each) {
    return each.second->run().isClosing() && isOfCohort(each.second->request(), request);
  };
  if (std::ranges::none_of(seats_, isMeant)) return;
  throw RunError("run-in-use", "the run of the cohort is being closed",
                 "try again: its last connections are being closed", kFenceSeconds);
}

std::vector<std::string> RunTable::checkMember(const RunRequest& trial) const {
  RunRequest request = trial;
  request.spec = runSpecFromWire(trial.hello.member().run_spec());
  const std::uint32_t number = memberNumber(request);
  const std::shared_ptr<Seat> first = seatOfCohort(request);
  if (!first) return {};
  const RunRequest& other = first->run().owner().request();
  request.spec.graph = other.spec.graph;  // graph_digest is compared instead
  checkSameRun(other, request);
  return first->run().checkMember({number, &request.hello});
}

std::shared_ptr<Seat> RunTable::join(RunRequest request, const RunPlan& plan,
                                     const std::shared_ptr<Seat>& first) {
  const std::string key = keyOf(request);
  auto ticket =
      admission_.admitMember(request.identity, plan, memberBytesOf(request, &first->request()));
  Seat* const seat = first->run().join(std::move(request), std::move(ticket), failedFunction(key));
  return seat == nullptr ? nullptr : seats_[key] = std::shared_ptr<Seat>(first, seat);
}

std::shared_ptr<const void> RunTable::expectMember(const RunRequest& request) {
  std::erase_if(expected_, [](const Expected& each) { return each.waits.expired(); });
  const std::string& cohort = request.spec.cohort.id;
  const std::string& member = request.hello.member().name();
  for (const Expected& each : expected_) {
    if (each.cohort != cohort || each.member != member) continue;
    throw RunError("member-connected",
                   fmt::format("{} already waits to take part in the cohort {}", printable(member),
                               printable(cohort)),
                   "set cohort.member to this client's own name; if its earlier process has just "
                   "ended, try again",
                   kMemberRetrySeconds);
  }
  const auto waits = std::make_shared<const int>();
  expected_.push_back({cohort, member, digestOf(request.spec), waits});
  return waits;
}

bool RunTable::expectsMember(const Cohort& cohort) const {
  return std::ranges::any_of(expected_, [&](const Expected& each) {
    return each.cohort == cohort.id && !each.waits.expired();
  });
}

std::vector<std::uint32_t> RunTable::expectedNumbers(const Cohort& cohort,
                                                     const std::string& spec) const {
  std::vector<std::uint32_t> numbers;
  for (const Expected& each : expected_) {
    if (each.cohort != cohort.id || each.spec != spec || each.waits.expired()) continue;
    const auto found = std::ranges::find(cohort.members, each.member);
    numbers.push_back(static_cast<std::uint32_t>(found - cohort.members.begin()));
  }
  return numbers;
}

boost::asio::awaitable<std::optional<TurnRecord>> RunTable::lastTurn(
    const RunRequest& request, const std::string& spec) const {
  const std::string identity = recordsIdentity(request);
  co_return co_await resources_.store.readTurns(identity, spec, request.spec.cohort.id);
}

boost::asio::awaitable<bool> RunTable::comesTooLate(const RunRequest& request) const {
  if (request.hello.generation() <= 1) co_return false;  // it begins a new run
  const std::string identity = recordsIdentity(request);
  const std::string spec = digestOf(request.spec);
  co_return co_await resources_.store.isDoneWithout(identity, spec, request.runId());
}

void RunTable::check(const RunRequest& request) const {
  checkRunId(request.runId());
  if (request.isTrial()) throw ProtocolError("bad-metadata", "a trial has a cohort");
  if (!request.spec.graph.empty()) admission_.checkModel(request.identity, "graph");
  admission_.checkRun(request.identity, request.runId(), planRun(request.spec));
}

std::unique_ptr<Admission::Ticket> RunTable::reserve(const std::string& identity,
                                                     const RunPlan& plan, std::size_t forMember) {
  try {
    return admission_.admit(identity, plan, forMember);
  } catch (const RunError& error) {
    // The end of a run makes room for another one, but does not change how many have begun this
    // hour. Nothing else marks that limit, so its code is compared.
    const bool mayFit = error.retrySeconds() > 0 && error.code() != "too-many-runs";
    if (!mayFit || !endOldestParked(identity)) throw;
    throw RunError(error.kind(), error.code(), error.what(),
                   "try again: a run without a connected client is being ended", kFenceSeconds);
  }
}

// Prefers a run of this identity. Returns false if no run is parked.
bool RunTable::endOldestParked(const std::string& identity) {
  Seat* oldest = nullptr;
  const auto isBefore = [&](const Seat& seat) {
    if (oldest == nullptr) return true;
    const bool isOwn = seat.request().identity == identity;
    const bool isOldestOwn = oldest->request().identity == identity;
    return isOwn == isOldestOwn ? seat.parkedSince() < oldest->parkedSince() : isOwn;
  };
  for (const auto& [key, seat] : seats_) {
    if (seat->isParked() && !seat->run().isClosing() && isBefore(*seat)) oldest = seat.get();
  }
  if (oldest == nullptr) return false;
  oldest->end(std::make_exception_ptr(RunError(
      "park-ended", "another run needs the memory of this one, whose client is disconnected")));
  return true;
}

void RunTable::refuseServed(const RunRequest& request) {
  const std::string& runId = request.runId();
  const auto found = seats_.find(runId);
  if (found == seats_.end()) return;
  Seat& served = *found->second;
  // This is checked first, so that another identity cannot end a served run.
  if (served.request().identity != request.identity) throw othersRun(runId);
  const bool takesOver = request.hello.take_over();
  if (!takesOver) checkContinues(request.hello, served.lastConnection());
  served.end(std::make_exception_ptr(
      RunError("stale-generation",
               takesOver ? "another client has taken the run over, so this connection is closed"
                         : "the run has reconnected, so this older connection is closed")));
  throw RunError("run-in-use", fmt::format("the run {} is already connected to this server", runId),
                 "try again: the older connection is being closed",
                 served.isParked() ? kParkedFenceSeconds : kFenceSeconds);
}

std::shared_ptr<Seat> RunTable::find(const RunRequest& request) const {
  const auto found = seats_.find(keyOf(request));
  if (found != seats_.end() && found->second->request().identity != request.identity) {
    throw othersRun(request.runId());
  }
  if (found == seats_.end() || found->second->hasEnded() || found->second->run().isClosing() ||
      found->second->token() != request.hello.token()) {
    throw RunError(ErrorKind::attempt, "run-not-here",
                   fmt::format("this server no longer has the run {} in its memory",
                               printable(request.runId())),
                   "rerun the command; the server was restarted, or the connection was broken for "
                   "longer than its limits.park_seconds");
  }
  const Seat& seat = *found->second;
  checkContinues(request.hello, seat.lastConnection());
  if (request.spec != seat.request().spec) {
    throw UsageError(
        "other-run-spec",
        fmt::format("the run {} was started with a different run spec", request.runId()),
        "continue it with its original configuration")
        .about("--resume");
  }
  return found->second;
}

// The other server may ask before the client has asked for the run. The answer does not say whether
// the run exists.
std::shared_ptr<RunEdge> RunTable::findEdge(const std::string& runId,
                                            const std::string& token) const {
  const auto found = seats_.find(runId);
  if (found != seats_.end() && !found->second->run().isClosing()) {
    if (auto edge = found->second->run().edge(token)) return edge;
  }
  throw RunError("edge-not-here", "this server has no run that expects this direct link",
                 "the client may not have connected yet: try again", kEdgeRetrySeconds);
}

// ---- Parked seats ----

void RunTable::endParked(const Error& error, const std::function<bool(const Seat&)>& isMeant) {
  const auto seats = seats_;  // a copy, because a run that ends may be removed from seats_
  for (const auto& [key, seat] : seats) {
    if (!seat->isParked() || !isMeant(*seat)) continue;
    seat->end(std::make_exception_ptr(RunError(error, error.what(), error.hint())));
  }
}

void RunTable::parkedSeatFailed(const std::string& key, std::exception_ptr error) {
  const auto found = seats_.find(key);
  if (found == seats_.end() || found->second->run().isClosing()) return;
  found->second->failedUnconnected(error);
  std::string reason;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    reason = printable(failure.what());
  }
  found->second->run().log(spdlog::level::warn, "ended while it was not connected: " + reason);
  boost::asio::co_spawn(resources_.io, close(found->second, reason), [](std::exception_ptr failed) {
    if (failed) std::rethrow_exception(failed);
  });
}

std::vector<SessionStatus> RunTable::parked() const {
  std::vector<SessionStatus> all;
  for (const auto& [key, seat] : seats_) {
    if (seat->isParked()) all.push_back(seat->status());
  }
  return all;
}

// ---- The end ----

boost::asio::awaitable<void> RunTable::close(std::shared_ptr<Seat> seat, std::string reason) {
  ServedRun& run = seat->run();
  const bool isOpen = seat->link() != nullptr;
  if (!run.leave(*seat, reason)) {
    if (!isOpen) std::erase_if(seats_, [&](const auto& each) { return each.second == seat; });
    co_return;
  }
  co_await run.close();
  closeUsage(run);
  std::erase_if(seats_, [&](const auto& entry) { return &entry.second->run() == &run; });
  seat.reset();
  nextClosed_.cancel();
  closed_();
}

boost::asio::awaitable<void> RunTable::waitForClosed(std::chrono::milliseconds time) {
  using namespace boost::asio::experimental::awaitable_operators;
  boost::asio::steady_timer pause(resources_.io, time);
  const auto ignoringCancellation = boost::asio::as_tuple(boost::asio::use_awaitable);
  co_await (nextClosed_.async_wait(ignoringCancellation) || pause.async_wait(ignoringCancellation));
}

void RunTable::completeRecords() {
  for (const auto& [key, seat] : seats_) {
    closeUsage(seat->run());
    seat->run().completeRecords();
  }
}

// ---- Usage ----

void RunTable::recordUsage(SteadyTime time) {
  for (const auto& [key, seat] : seats_) recordUsage(seat->run(), time);
}

void RunTable::recordUsage(ServedRun& run, SteadyTime time) {
  const RunRequest& request = run.owner().request();
  resources_.store.usage().add(request.identity, accountOf(request), run.takeUsage(), time);
}

void RunTable::closeUsage(ServedRun& run) {
  recordUsage(run, now());
  const RunRequest& request = run.owner().request();
  resources_.store.usage().close(request.identity, accountOf(request));
}

}  // namespace cleave
