#include "server/run/served_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cassert>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <variant>

#include "common/cohort/member_part.h"
#include "common/core/failpoint.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/device/torch_errors.h"
#include "common/files/sha256.h"
#include "common/link/edge.h"
#include "common/link/wire_messages.h"
#include "common/run/action_tables.h"
#include "common/topology/turns.h"
#include "server/run/hello.h"
#include "server/run/membership.h"
#include "server/store/on_thread.h"
#include "stage/remote_body.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

// "block 2" or "blocks 2 to 4"
std::string blocksText(const RunPlan& plan) {
  const int first = plan.stage.cuts.cut0, last = plan.stage.cuts.cut1 - 1;
  return first == last ? fmt::format("block {}", first)
                       : fmt::format("blocks {} to {}", first, last);
}

constexpr std::chrono::seconds kRosterEvery{
    1};  // how often waiting members are told who is missing

// Tests make the weights of one body wrong.
void makeUpdateFail(ActionTable& table) {
  const auto damaged = [](Work work) {
    if (failingCall("body-update") != 0) std::get<StepDecision>(work.input).clipFactor /= 2;
    return work;
  };
  ActionFunction& run = table[indexOf(ActionKind::update)];
  run = [damaged, inner = std::move(run)](Work work) { return inner(damaged(std::move(work))); };
  StartFunction& start = table.starts[indexOf(ActionKind::update)];
  if (!start) return;
  start = [damaged, inner = std::move(start)](Work work, Done done) {
    inner(damaged(std::move(work)), std::move(done));
  };
}

}  // namespace

ProtocolError trialTooLong(const std::string& limit) {
  return ProtocolError("trial-too-long", "the trial takes more than " + limit,
                       "set a codec instead of auto");
}

ServedRun::ServedRun(const RunResources& resources, RunRequest request, RunPlan plan,
                     std::unique_ptr<Admission::Ticket> ticket,
                     std::function<void(std::exception_ptr)> failed)
    : resources_(resources),
      isTrial_(request.isTrial()),
      plan_(std::move(plan)),
      serverLog_(logAbout(request.identity, request.runId())),
      edges_(request.hello, resources_.settings, resources_.certificates, resources_.io,
             [this](const RunError& error) { edgeFailed(error); }),
      opened_(resources.io, SteadyTime::max()) {
  const std::uint32_t number = memberNumber(request);
  seats_.push_back(std::make_unique<Seat>(*this, resources, number, std::move(request),
                                          std::move(ticket), std::move(failed)));
  admitted_ = seats_.front().get();
  checkAnnounced(owner().request());
}

ServedRun::~ServedRun() = default;

// ---- Members of a cohort ----

Seat* ServedRun::join(RunRequest request, std::unique_ptr<Admission::Ticket> ticket,
                      std::function<void(std::exception_ptr)> failed) {
  const std::uint32_t number = memberNumber(request);
  const Announced member{number, &request.hello};
  const auto place = std::ranges::lower_bound(seats_, number, {}, &Seat::number);
  const bool isTaken = place != seats_.end() && (*place)->number() == number;
  if (plan_.spec.cohort.isRelay() && !isTaken) {
    throw RunError("run-in-use", nameOf(owner()) + " has its turn", "try again",
                   kMemberRetrySeconds);
  }
  // A member whose client has lost its run joins with another one.
  const bool hasNewRun = isTaken && !plan_.spec.cohort.needsAll() && (*place)->isParked() &&
                         (*place)->request().identity == request.identity;
  if (!isTaken || hasNewRun) {
    checkSameRun(owner().request(), request);
    checkAnnounced(request);
    if (plan_.joint) checkSameData(plan_.joint->roster(), member);
  }
  if (hasNewRun) {
    (*place)->end(std::make_exception_ptr(
        RunError("member-replaced", "the member has connected with another run")));
  }
  if (isTaken) {
    throw RunError(
        "member-connected",
        fmt::format("{} is already connected to this server as a member of the cohort {}",
                    plan_.spec.cohort.members[number], plan_.spec.cohort.id),
        "set cohort.member to this client's own name; if its earlier process has just "
        "ended, try again",
        kMemberRetrySeconds);
  }
  if (openError_ || isBeingOpened()) {
    throw RunError("run-in-use", "the run of the cohort is being opened, or has failed to open",
                   "try again", kMemberRetrySeconds);
  }
  if (isOpening_) {
    requestCheckpointFor(member);
    return nullptr;
  }
  auto seat = std::make_unique<Seat>(*this, resources_, number, std::move(request),
                                     std::move(ticket), std::move(failed));
  return seats_.insert(place, std::move(seat))->get();
}

void ServedRun::requestCheckpointFor(const Announced& member) {
  const Roster& roster = plan_.joint->roster();
  // There must still be room for a departure.
  if (roster.attendance.size() + 1 >= kMaxAttendances) throw tooManyChanges();
  if (!stored_.checkpoints) {
    throw UsageError("bad-cohort",
                     "a member can join only at a checkpoint, but this server makes none",
                     "set checkpoints.allowed in the server's configuration");
  }
  if (!isServing_ || secondsSince(served_) < plan_.spec.cohort.waitSeconds) return;
  saved_->joins(plan_.spec.cohort.members[member.number]);
}

std::vector<std::string> ServedRun::checkMember(const Announced& member) const {
  for (const Announced& other : announced()) {
    const wire::Member& past = other.hello->member();
    if (!past.has_plan()) continue;
    checkSameData(rosterFromWire(past.plan(), plan_.spec.cohort), member);
  }
  if (plan_.joint) checkSameData(plan_.joint->roster(), member);
  std::vector<std::string> others = presentNames();
  std::erase(others, plan_.spec.cohort.members[member.number]);
  return others;
}

std::vector<std::string> ServedRun::missing() const {
  if (plan_.spec.cohort.isRelay()) return {};
  std::vector<std::string> names = plan_.spec.cohort.members;
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::any_of(
        seats_, [&](const auto& seat) { return seat->request().hello.member().name() == name; });
  });
  return names;
}

// The run begins with the first member, whose records it has.
bool ServedRun::goesOnWithout(const Seat& seat) const {
  const Cohort& cohort = plan_.spec.cohort;
  const std::vector<Announced> members = announced();
  if (&seat != &owner() || isOpening_) return false;
  if (!haveBegun(members)) {
    return seat.number() == 0 && !haveSaved(members) && members.size() >= cohort.neededToBegin();
  }
  if (cohort.needsAll() || members.size() < cohort.minMembers) return false;
  try {
    const Roster roster = gather(cohort, members).roster;
    // Those that the last steps were made without are not waited for again.
    const auto isThere = [&](std::uint32_t number) {
      return std::ranges::find(members, number, &Announced::number) != members.end();
    };
    const bool areSame = !roster.attendance.empty() &&
                         std::ranges::all_of(roster.attendance.back().present, isThere);
    return areSame || secondsSince(created_) >= cohort.waitSeconds;
  } catch (const UsageError&) {  // those that can continue may still come
    return false;
  }
}

asio::awaitable<bool> ServedRun::waitUntilOpen() {
  using namespace asio::experimental::awaitable_operators;
  if (opened_.expiry() == SteadyTime::max()) {
    asio::steady_timer pause(resources_.io, kRosterEvery);
    const auto ignoringCancellation = asio::as_tuple(asio::use_awaitable);
    co_await (opened_.async_wait(ignoringCancellation) || pause.async_wait(ignoringCancellation));
  }
  if (openError_) std::rethrow_exception(openError_);
  co_return opened_.expiry() != SteadyTime::max();
}

const std::string& ServedRun::nameOf(const Seat& seat) const {
  return plan_.spec.cohort.members[seat.number()];
}

std::vector<Announced> ServedRun::announced() const {
  std::vector<Announced> members;
  for (const auto& seat : seats_) members.push_back({seat->number(), &seat->request().hello});
  return members;
}

std::vector<std::string> ServedRun::presentNames() const {
  std::vector<std::string> names;
  for (const auto& seat : seats_) names.push_back(nameOf(*seat));
  return names;
}

// Finds out from which of the server's checkpoints the members can continue, and ends the seats of
// those that cannot.
void ServedRun::gatherMembers() {
  if (plan_.spec.cohort.isRelay()) {
    gathering_ = gatherTurn(plan_.spec.cohort, announced().front(), turn_, stored_.available);
    stored_.available = commits_ = gathering_.commits;
    return;
  }
  gathering_ = gather(plan_.spec.cohort, announced(), &stored_.available);
  if (gathering_.commits.empty() && haveBegun(announced()) && !isComplete()) {
    throw RunError(
        ErrorKind::attempt, "no-checkpoint",
        fmt::format("the server has none of the checkpoints of {}; {} may have later ones",
                    fmt::join(presentNames(), ", "), fmt::join(missing(), ", ")),
        "start the clients of the other members", kRecordsRetrySeconds);
  }
  stored_.available = commits_ = gathering_.commits;
  for (const auto& [number, error] : gathering_.unfit) {
    const auto found = std::ranges::find(seats_, number, &Seat::number);
    (*found)->end(std::make_exception_ptr(error));
    unfit_.push_back(std::move(*found));
    seats_.erase(found);
  }
}

bool ServedRun::isJoining(const Seat& seat) const {
  const auto& joining = gathering_.joining;
  return std::ranges::find(joining, seat.number()) != joining.end();
}

// All parts of the run know its batches from now on. Call when the store has said which checkpoints
// it has.
void ServedRun::joinMembers() {
  std::vector<std::uint32_t> present;
  for (const auto& seat : seats_) present.push_back(seat->number());
  const std::uint64_t step = commits_.empty() ? 0 : commits_.front().step();
  RunPlan* plan = &plan_;
  const bool isRelay = plan_.spec.cohort.isRelay();
  cleave::joinMembers(plan_.spec,
                      isRelay ? gathering_.roster : rosterFrom(gathering_, step, present),
                      hello().member().share_values(), std::span(&plan, 1));
}

bool ServedRun::leave(Seat& seat, const std::string& reason) {
  const auto isSeat = [&](const auto& each) { return each.get() == &seat; };
  if (!isOpening_ && seats_.size() > 1) {
    // Its ticket is that of the run: the others must be admitted again.
    if (&seat == admitted_) {
      endSeats(RunError(ErrorKind::attempt, "member-left", nameOf(seat) + " has left the cohort",
                        "try again", kMemberRetrySeconds));
    }
    std::erase_if(seats_, isSeat);
    return false;
  }
  const bool isUnfit = std::ranges::any_of(unfit_, isSeat);
  if (isUnfit && !isBeingOpened()) {  // while the run is being opened, open() uses all seats
    std::erase_if(unfit_, isSeat);
    return left_.size() == seats_.size() + unfit_.size();
  }
  if (hasLeft(seat)) return false;
  left_.push_back(&seat);
  // endSeats() may make others leave
  const bool isLast = left_.size() == seats_.size() + unfit_.size();
  if (!reason.empty() && seats_.size() > 1 && !isUnfit && !openError_) {
    endSeats(RunError(ErrorKind::attempt, "member-left",
                      fmt::format("{} has left the cohort: {}", nameOf(seat), reason),
                      "start the run again when all members can take part"));
  }
  return isLast;
}

bool ServedRun::hasLeft(const Seat& seat) const {
  return std::ranges::find(left_, &seat) != left_.end();
}

// Ends the seats that nobody has left.
void ServedRun::endSeats(const Error& error) {
  for (const auto& seat : seats_) {
    if (hasLeft(*seat)) continue;
    seat->end(std::make_exception_ptr(RunError(error, error.what(), error.hint())));
  }
}

// ---- Opening ----

asio::awaitable<void> ServedRun::open() {
  assert(!isOpening_);
  isOpening_ = true;
  try {
    if (plan_.spec.cohort.exists()) {
      commits_ = candidates(announced());
    } else {
      commits_ = {hello().committed().begin(), hello().committed().end()};
    }
    co_await openAll();
  } catch (...) {
    openError_ = std::current_exception();
  }
  opened_.expires_at(SteadyTime::min());  // resumes those that wait
  if (openError_) std::rethrow_exception(openError_);
}

asio::awaitable<void> ServedRun::openAll() {
  if (plan_.spec.cohort.isRelay()) {
    const std::string identity = recordsIdentity(owner().request());
    const std::string spec = digestOf(owner().request().spec);
    turn_ = co_await resources_.store.readTurns(identity, spec, plan_.spec.cohort.id);
    if (turn_) commits_.push_back(commitOf(*turn_));
  }
  co_await openRecords();
  if (plan_.spec.cohort.exists()) gatherMembers();
  for (const auto& seat : seats_) {
    if (hasLeft(*seat)) {
      throw RunError(ErrorKind::attempt, "member-left",
                     nameOf(*seat) + " has left while the run began",
                     "start the run again when all members can take part");
    }
  }
  if (plan_.spec.cohort.exists()) joinMembers();
  mailbox_ = std::make_shared<Mailbox>(resources_.device, plan_.inFlight, seats_.size());
  if (engineOptions(plan_).reduces) {
    // Identities cannot join each other's groups. The client's random attempt keeps strangers out.
    replicas_ = std::make_shared<RunReplicas>(
        *resources_.replicas, owner().request().identity + "/" + hexOf(hello().attempt()));
  }
  if (resources_.stages != nullptr) stageMemory_.emplace(plan_);
  if (stored_.turns && isJoining(owner())) {
    const std::uint64_t max = hello().member().state_bytes();
    turnState_ = co_await stored_.turns->load(resources_.io, turn_->step, max);
  }
  openLinks();
  const auto saved = [replies = saved_, last = lastSaved_](const Saved& each,
                                                           std::uint64_t evaluated) {
    *last = {each, evaluated, false};
    replies->savedHere(each);
  };
  std::vector<BodyCheckpoints::Client> clients;
  for (const auto& seat : seats_)
    clients.push_back({seat->number(), seat->link(), isJoining(*seat)});
  checkpoints_.emplace(stored_, *record_, edges_.links(), std::move(clients),
                       plan_.spec.replicas > 1, turn_ ? std::optional(turn_->step) : std::nullopt,
                       saved, resources_.io);
  worker_ = makeWorker();
  // Builds the model as the worker's first action, so that the Hello is answered without waiting
  // for the device, and the build time is charged to the session.
  worker_->buildFirst([this] { return build(); });
}

std::optional<CohortRecords> ServedRun::cohortRecords() const {
  if (!plan_.spec.cohort.exists() || plan_.spec.cohort.needsAll()) return std::nullopt;
  return CohortRecords{owner().number() == 0, haveBegun(announced()) || turn_.has_value(),
                       plan_.spec.cohort.isRelay()};
}

asio::awaitable<void> ServedRun::openRecords() {
  const RunRequest& request = owner().request();
  const int asked = static_cast<int>(std::min(request.spec.serverThreads, 1024u));
  threads_ =
      chooseThreads(usableCores(), asked, resources_.settings.threads, request.clientIsLocal);
  if (!isTrial_) {
    const std::string spec = digestOf(request.spec);
    const std::string identity = recordsIdentity(request);
    const StoreRequest wanted{.identity = identity,
                              .hello = request.hello,
                              .cohort = cohortRecords(),
                              .commits = commits_,
                              .spec = spec,
                              .session = request.session,
                              .threads = threads_.threads,
                              .maxWeightsBytes = namesWeights() ? maxWeightsBytes(plan_) : 0,
                              .samplesBytes = samplesDiskBytes(plan_)};
    stored_ = co_await resources_.store.open(wanted);
    owner().stored(stored_.connection);
    const std::string& unconfined = resources_.settings.unconfined;
    if (!unconfined.empty()) stored_.log->warn("{}", unconfinedText(unconfined));
  }
  record_ = std::make_shared<RunRecord>(stored_.files, plan_.spec.stepsPerEpoch, stored_.disk);
}

void ServedRun::openLinks() {
  TensorLinkOptions options = linkOptions(plan_, Role::server);
  if (resumes() || hasStoredWeights()) options.initialWeights = false;
  if (namesWeights()) options.weightsSha256 = hello().weights_sha256();
  options.errorEvery = resources_.settings.errorEvery;
  if (plan_.samplesOnDisk) options.samplesFolder = stored_.files->folder();
  options.levels = std::make_shared<CodecLevels>();  // shared with the edges
  options.helper = resources_.helper;
  // The state crosses the link of the first member that has it, and that of each that joins.
  // In a relay, the member whose turn it is sends it at the end.
  const bool isRelay = plan_.spec.cohort.isRelay();
  const std::size_t joining = isRelay ? 0 : gathering_.joining.size();
  const std::size_t stateBytes = joining == 0 && !hasTurn() ? 0 : hello().member().state_bytes();
  std::size_t sender = 0;
  while (!isRelay && isJoining(*seats_[sender])) ++sender;
  // Each member's part of a sum, as in memberBytes().
  const std::size_t partBytes = seats_.size() * BufferPool::capacityFor(plan_.partBytes);
  options.account = account_ =
      std::make_shared<MemoryAccount>(transitBytes(plan_) + partBytes + stateBytes * (joining + 1));
  options.codecQueue = codecQueue_ = resources_.codecs.open();
  trace_ = options.trace;
  lateness_ = std::make_shared<Lateness>(seats_.size());
  saved_ = std::make_shared<SavedByAll>(
      engineOptions(plan_).sumsMembers ? presentNames() : std::vector<std::string>());
  const auto joiners = std::make_shared<std::vector<std::weak_ptr<TensorLink>>>();
  const auto first = std::make_shared<std::weak_ptr<TensorLink>>();
  const HandOver handOver = isRelay ? handOverFunction() : nullptr;
  const auto deliverFrom = [this, joiners, first, handOver](std::size_t peer) {
    return [mailbox = mailbox_, replicas = replicas_, saved = saved_, lateness = lateness_, joiners,
            first, handOver, peer](Message message) {
      const auto* blob = std::get_if<Blob>(&message);
      if (blob != nullptr && blob->flow == kStateClient) {
        if (handOver) return handOver(*blob, first->lock());
        for (const auto& each : *joiners) {
          if (const auto link = each.lock()) link->send(*blob);
        }
        return;
      }
      if (blob != nullptr && blob->flow == kPartsClient) lateness->sent(peer);
      if (replicas && std::holds_alternative<TensorMessage>(message)) replicas->join();
      if (const auto* part = std::get_if<Saved>(&message)) {
        return saved->savedByMember(peer, *part);
      }
      if (std::holds_alternative<Drain>(message)) return saved->leaves(peer);
      const auto* decision = std::get_if<StepDecision>(&message);
      if (decision != nullptr && peer == 0) saved->decided(*decision);
      mailbox->deliver(std::move(message), peer);
    };
  };
  const auto record = [files = stored_.files](const TransferRecord& each) {
    files->transfer(each);
  };
  edges_.takeFlows(options);
  const auto pool = stageMemory_ ? stageMemory_->inputs : resources_.pool;
  edges_.start(options, pool, deliverFrom(0), record);
  for (std::size_t s = 0; s < seats_.size(); ++s) {
    Seat& seat = *seats_[s];
    options.stateBytes = s == sender ? stateBytes : 0;
    seat.open(
        std::make_shared<TensorLink>(options, pool, resources_.io,
                                     TensorLink::Callbacks{deliverFrom(s), record, seat.failed()}));
    saved_->addClient(seat.link());
    if (s == 0) *first = seat.link();
    if (isJoining(seat)) joiners->push_back(seat.link());
  }
}

bool ServedRun::hasTurn() const {
  const Cohort& cohort = plan_.spec.cohort;
  return cohort.isRelay() &&
         turnsOf(plan_.joint->roster()).back() / cohort.size() < hello().member().rounds();
}

// Keeps what the member hands on at the end of its turn, and says when it is durable. The function
// is called in the codec queue.
ServedRun::HandOver ServedRun::handOverFunction() {
  const auto handOver = [turns = stored_.turns, last = lastSaved_, joint = plan_.joint,
                         agreed = agreedOf(owner().request()), replies = saved_,
                         io = resources_.io](Blob state) {
    const Saved& saved = last->saved;
    const Roster& roster = joint->roster();
    const bool isDurable = saved.code.empty() && !saved.sha256.empty();
    if (!isDurable || saved.step < roster.attendance.back().firstStep ||
        joint->lastStepOf(joint->epochOf(saved.step)) != saved.step) {
      throw ProtocolError("unexpected-message",
                          "a state is handed on, but the last step of the turn has no checkpoint");
    }
    const auto done = [replies, last, io](const Saved& answer) {
      boost::asio::post(io, [replies, last, answer] {
        last->isHandedOn = answer.code.empty();
        replies->savedHere(answer);
      });
    };
    turns->save({saved.step, saved.sha256, last->evaluated, roster, agreed}, std::move(state),
                done);
  };
  return [handOver, hasFailed = hasFailed_, io = resources_.io](
             Blob state, const std::shared_ptr<TensorLink>& client) {
    boost::asio::post(io, [handOver, hasFailed, client, state = std::move(state)]() mutable {
      try {
        handOver(std::move(state));
      } catch (...) {
        hasFailed->open();
        if (client) client->fail(std::current_exception());
      }
    });
  };
}

// The clients learn from this server why the run ends.
void ServedRun::edgeFailed(const RunError& error) {
  failFunction()(std::make_exception_ptr(
      RunError(error, fmt::format("{} (from the server of {})", error.what(), blocksText(plan_)),
               error.hint())));
}

std::vector<std::shared_ptr<TensorLink>> ServedRun::clientLinks() const {
  std::vector<std::shared_ptr<TensorLink>> links;
  for (const auto& seat : seats_) links.push_back(seat->link());
  return links;
}

std::vector<TensorLink*> ServedRun::links() const {
  if (!isOpen()) return {};
  std::vector<TensorLink*> links = edges_.links();
  for (const auto& link : clientLinks()) links.push_back(link.get());
  return links;
}

LinkTotals ServedRun::totals() const {
  LinkTotals totals;
  for (const TensorLink* const link : links()) totals += link->totals();
  return totals;
}

std::shared_ptr<EngineWorker> ServedRun::makeWorker() {
  EngineOptions options = engineOptions(plan_);
  options.resumes = resumes();
  options.hasEdgeBefore = edges_.hasBefore();
  std::vector<std::shared_ptr<EngineLink>> engineLinks{edges_.with(owner().link())};
  for (std::size_t s = 1; s < seats_.size(); ++s) engineLinks.push_back(seats_[s]->link());
  auto worker = std::make_shared<EngineWorker>(
      std::make_unique<Participant>(options, plan_.place, std::move(engineLinks)), mailbox_,
      ActionTable{}, [this] { finishedBatch(); }, failFunction(), resources_.compute.queue(),
      trace_);
  worker->limitActions(resources_.settings.actionSeconds);
  return worker;
}

std::unique_ptr<Body> ServedRun::makeBody() {
  if (resources_.stages != nullptr) {
    auto process = startStage(*resources_.stages, plan_, threads_.threads, *stageMemory_);
    process_.store(process->watched());
    return std::make_unique<RemoteBody>(std::move(process), plan_, threads_.threads,
                                        resources_.settings.actionSeconds, *stageMemory_, account_,
                                        [runLog = stored_.log](const std::string& text) {
                                          if (runLog) runLog->warn("{}", text);  // a trial has none
                                        });
  }
  return withTorchErrors(
      [&] { return std::make_unique<BodyStage>(plan_.stage, resources_.compute); });
}

ActionTable ServedRun::build() {
  assert(!body_);
  setComputeThreads(threads_.threads);
  body_ = makeBody();
  ActionTable table =
      bodyActions(*body_, threads_.threads, mayFetchWeights(),
                  {[this](const StepDecision& decision) { checkpoints_->take(decision, *body_); },
                   [this](const Resume& resume) {
                     EngineState state = checkpoints_->restore(resume, *body_, totals());
                     // Those of later steps may be of members that do not take part any more.
                     // In a relay, a member without a turn only gets the model.
                     const bool isRelay = plan_.spec.cohort.isRelay();
                     if (plan_.joint && (!isRelay || hasTurn())) {
                       stored_.checkpoints->forgetAfter(resume.step);
                     }
                     if (isRelay) continuesFrom(resume.step, state.evaluated);
                     return state;
                   }},
                  reduceFunction());
  if (auto* const remote = dynamic_cast<RemoteBody*>(body_.get())) remote->startActions(table);
  if (plan_.joint) {
    table[indexOf(ActionKind::sum)] = [values = hello().member().share_values(),
                                       names = presentNames()](Work work) -> Result {
      return sumOfParts(std::get<std::vector<Blob>>(work.input), values, names);
    };
  }
  makeUpdateFail(table);
  if (stored_.weights && !hasStoredWeights()) {
    ActionFunction& function = table[indexOf(ActionKind::importBlob)];
    function = [this, import = std::move(function)](Work work) {
      return importAndKeep(import, std::move(work));
    };
  }
  return table;
}

// The member may hand this checkpoint on, if it is that of the end of its turn.
void ServedRun::continuesFrom(std::uint64_t step, std::uint64_t evaluated) {
  Saved saved;
  saved.step = step;
  saved.sha256 = std::ranges::find(stored_.available, step, &wire::Commit::step)->sha256();
  boost::asio::post(resources_.io, [last = lastSaved_, saved, evaluated] {
    *last = {saved, evaluated, false};
  });
}

ReduceFunction ServedRun::reduceFunction() {
  if (!replicas_) return nullptr;
  return [this](std::uint64_t step, std::span<float> share,
                std::function<void(std::exception_ptr)> done) {
    failpoint("reduce");
    replicas_->reduce(step, share, std::move(done));
  };
}

std::function<void(std::exception_ptr)> ServedRun::failFunction() const {
  return [clients = clientLinks(), hasFailed = hasFailed_](const std::exception_ptr& error) {
    hasFailed->open();
    for (const auto& link : clients) link->fail(error);
  };
}

// ---- Initial weights ----

// Loads the weights as if they had arrived from the client.
void ServedRun::loadStoredWeights() {
  assert(hasStoredWeights());
  stored_.weights->load(
      resources_.pool->chargedTo(account_),
      [mailbox = mailbox_](Blob weights) { mailbox->deliver(std::move(weights)); }, failFunction());
}

Result ServedRun::importAndKeep(const ActionFunction& import, Work work) {
  assert(stored_.weights && !hasStoredWeights());
  Blob weights = std::get<Blob>(work.input);
  Result result = import(std::move(work));
  // The memory for unpacking is no longer needed. It is now available for weights that the client
  // fetches while these are being written.
  account_->raiseLimit(unpackedWeightsBytes(plan_));
  stored_.weights->keep(std::move(weights));
  return result;
}

void ServedRun::finish(const Seat& seat) {
  done_->open();
  if (plan_.spec.cohort.isRelay()) return;  // the others still need the last turn's
  if (stored_.checkpoints) stored_.checkpoints->finish(resources_.settings.keepFinished);
  doneRuns_.push_back(seat.request().runId());
  storeDoneRuns();
}

void ServedRun::storeDoneRuns() const {
  if (!plan_.spec.cohort.exists()) return;
  const RunRequest& request = owner().request();
  resources_.store.cohortIsDone(recordsIdentity(request), digestOf(request.spec), doneRuns_);
}

// ---- Seats ----

void ServedRun::connected(const Seat& seat) {
  usage_.connected();
  stored_.files->reconnected(seat.session(), seat.lastConnection().generation, &seat == &owner());
}

bool ServedRun::mayPark() const {
  // In a relay, the others wait for their turns: a client that has handed on, or that has not sent
  // anything since it got its turn, does not need the seat.
  const bool isRelay = plan_.spec.cohort.isRelay();
  const bool isNeeded = !isRelay || (!lastSaved_->isHandedOn && totals().up() > upAtStart_);
  return isServing_ && !isTrial_ && !isDraining_ && !hasFailed_->isOpen() && isNeeded;
}

ServedRun::Patience ServedRun::patience() const {
  const std::chrono::milliseconds park = resources_.settings.park;
  const Cohort& cohort = plan_.spec.cohort;
  const std::chrono::milliseconds ofCohort = std::chrono::seconds(cohort.waitSeconds);
  if (cohort.exists() && !cohort.needsAll() && ofCohort < park) {
    return {ofCohort, "cohort.wait_seconds"};
  }
  return {park, "limits.park_seconds in the server's configuration"};
}

void ServedRun::tellWhoIsMissing(const Seat& changed) const {
  if (seats_.size() < 2) return;
  Missing missing;
  for (const auto& seat : seats_) {
    if (seat->isParked()) missing.members.push_back(nameOf(*seat));
  }
  for (const auto& seat : seats_) {
    if (seat.get() == &changed || !seat->link()->connection()) continue;
    seat->link()->send(missing);
  }
}

wire::HelloOk ServedRun::helloOk(const Seat& seat) const {
  wire::HelloOk ok = helloOkOf(seat.session());
  ok.set_threads(static_cast<std::uint32_t>(threads_.threads));
  ok.set_in_flight(plan_.inFlight);
  if (!isTrial_ && resources_.settings.park.count() > 0) ok.set_token(seat.token());
  if (seat.arrived()) toWire(*seat.arrived(), *ok.mutable_arrived());
  ok.set_weights_stored(!seat.arrived() && hasStoredWeights());
  ok.set_body_bytes(maxWeightsBytes(plan_));
  ok.set_weights_allowed(mayFetchWeights());
  ok.set_device(resources_.settings.device);
  if (plan_.spec.replicas > 1) {
    ok.set_replica_group(sha256Of(fmt::format("{}", fmt::join(resources_.replicas->hosts, "\n"))));
  }
  if (plan_.joint) toWire(plan_.joint->roster(), *ok.mutable_cohort());
  ok.mutable_joining()->Assign(gathering_.joining.begin(), gathering_.joining.end());
  for (const wire::Commit& each : stored_.available) ok.add_available(each.step());
  ok.set_recorded_step(stored_.recordedStep);
  ok.set_exact(stored_.isExact);
  ok.set_checkpoints(stored_.checkpoints != nullptr);
  if (stored_.checkpoints) ok.set_fingerprint(stored_.checkpoints->fingerprint());
  return ok;
}

std::string ServedRun::summary() const {
  const Replica& replica = plan_.stage.replica;
  return fmt::format(
      "{}{}{} {}, {} micro-batches, {} in flight, schedule {}; threads: {}",
      isTrial_ ? "a trial of codecs: " : "",
      replica.isAlone() ? "" : fmt::format("replica {} of {}: ", replica.rank, replica.count),
      plan_.stage.model.name, blocksText(plan_), plan_.microBatches, plan_.inFlight,
      plan_.schedule->name, threads_.text);
}

// ---- Serving ----

void ServedRun::start() {
  assert(isOpen() && worker_ && !isServing_);
  record_->begin(totals());
  upAtStart_ = totals().up();
  resources_.device.attach(worker_, owner().request().identity);
  isServing_ = true;
  served_ = now();
  storeDoneRuns();  // none: the cohort's run is in progress
  if (hasStoredWeights()) loadStoredWeights();
  if (turnState_) owner().link()->send(*std::exchange(turnState_, std::nullopt));
  if (isDraining_) drain();
}

asio::awaitable<void> ServedRun::finishWork() {
  const auto isThere = [this](const auto& seat) { return !hasLeft(*seat); };
  if (std::ranges::count_if(seats_, isThere) > 1) co_return;  // the last seat waits
  if (isClosing_) co_return;
  const auto whenDone = [this](auto task) {
    const auto done = std::make_shared<Latch>();
    done->whenOpen(std::move(task));
    worker_->whenIdle([done] { done->open(); });
    hasFailed_->whenOpen([done] { done->open(); });
  };
  const auto resume = [] {};
  co_await runThrough(resources_.io, whenDone, resume);
}

void ServedRun::finishedBatch() {
  failpoint("batch");
  const Engine& engine = worker_->engine();
  if (isTrial_ && ++batches_ > kMaxTrialBatches) {
    throw trialTooLong(fmt::format("{} batches", kMaxTrialBatches));
  }
  const LinkTotals totals = this->totals();
  record_->finishedBatch(engine, worker_->betweenSteps(), totals);
  usage_.finishedBatch(engine.ended().at.phase, engine.ended().seconds);
  const TensorLink& link = *owner().link();
  pace_.finishedBatch(engine.ended().computed(), engine.ended().seconds, totals, link.receiveRate(),
                      link.sendRate());
  checkpoints_->saveTaken(engine.state());
}

void ServedRun::drain() {
  isDraining_ = true;
  if (!isOpening_ && plan_.spec.cohort.exists()) {
    return endSeats(RunError(ErrorKind::attempt, "shutting-down", "the server is shutting down",
                             "restart the server"));
  }
  if (!isServing_) return;  // start() handles it
  const Drain drain{std::chrono::duration<double>(resources_.settings.drain).count(), ""};
  for (const auto& seat : seats_) seat->link()->send(drain);
}

bool ServedRun::hasWork() const {
  if (!isServing_ || worker_->hasWork()) return true;
  const bool isLoading = hasStoredWeights() && isUsingWeightsStore();
  return isLoading || std::ranges::any_of(links(), &TensorLink::hasCodecWork);
}

// The members that are not connected, or whose part of the next sum is missing while another
// member's is there.
std::vector<std::string> ServedRun::waitsFor() const {
  std::vector<std::string> names;
  if (!isOpen()) {
    for (const std::string& name : missing()) names.push_back(printable(name));
    return names;
  }
  for (std::size_t s = 0; s < seats_.size(); ++s) {
    if (seats_[s]->isParked() || lateness_->isAwaited(s)) {
      names.push_back(printable(nameOf(*seats_[s])));
    }
  }
  return names;
}

std::size_t ServedRun::placeOf(const Seat& seat) const {
  const auto isSeat = [&](const auto& each) { return each.get() == &seat; };
  return static_cast<std::size_t>(std::ranges::find_if(seats_, isSeat) - seats_.begin());
}

void ServedRun::describe(const Seat& seat, SessionStatus& status) const {
  if (plan_.spec.cohort.exists()) {
    status.cohort = printable(plan_.spec.cohort.id);
    status.member = printable(nameOf(seat));
    status.samples = seat.request().hello.member().train_samples();
    status.waitsFor = waitsFor();
    if (seat.link()) {
      const LinkTotals totals = seat.link()->totals();
      status.bytesUp = totals.up();
      status.bytesDown = totals.down();
      status.lateSeconds = lateness_->seconds(placeOf(seat));
    }
  }
  status.model = plan_.stage.model.name;
  status.pace = pace_.state();
  if (const auto process = process_.load().lock()) status.residentBytes = process->residentBytes();
  const std::uint64_t perEpoch = plan_.spec.stepsPerEpoch;
  if (status.pace && status.pace->phase == Phase::train && perEpoch > 0) {
    status.epoch = epochOf(status.pace->step, perEpoch);
  }
}

void ServedRun::log(spdlog::level::level_enum level, const std::string& line) {
  if (stored_.log) stored_.log->log(level, line);  // a trial has no log
  const RunRequest& request = owner().request();
  if (!resources_.lines.take(request.identity, now())) return;
  serverLog_->log(level, "run {}: {}", request.runId(), line);
}

// ---- Closing ----

asio::awaitable<void> ServedRun::close() {
  isClosing_ = true;
  isServing_ = false;
  for (const auto& seat : seats_) seat->close();
  if (codecQueue_) codecQueue_->cancel();
  if (stored_.weights) stored_.weights->cancel();
  // Whatever still has memory of this run, uses its folder, or reports to the device keeps `held`
  // until it has ended.
  const auto ended = std::make_shared<Latch>();
  auto held = openedByLast(ended);
  if (isOpen()) edges_.close(held);
  if (replicas_) replicas_->abort(held);
  if (worker_) co_await closeWorker();
  if (checkpoints_) checkpoints_->close(held);
  if (stored_.turns) stored_.turns->keepUntilWritten(held);
  if (stored_.weights) std::exchange(stored_.weights, nullptr)->keepWhileBusy(held);
  if (const auto process = process_.load().lock()) process->keepUntilEnded(held);
  held.reset();
  const auto whenEnded = [ended](auto task) { ended->whenOpen(std::move(task)); };
  const auto resume = [] {};
  co_await runThrough(resources_.io, whenEnded, resume);
  if (isOpen()) {
    completeRecords();
    const LinkTotals totals = this->totals();
    log(spdlog::level::info, fmt::format("session {}: {} steps applied, {} bytes up, {} bytes down",
                                         owner().session(), applied_, totals.up(), totals.down()));
  }
  if (!codecQueue_) co_return;
  const auto whenIdle = [this](auto task) { codecQueue_->cancel(std::move(task)); };
  co_await runThrough(resources_.io, whenIdle, resume);
}

asio::awaitable<void> ServedRun::closeWorker() {
  worker_->stop();
  resources_.device.detach(worker_);
  // If the stage was not built, there is nothing to destroy on the device thread, and no need to
  // wait for other runs' actions.
  if (worker_->cancelBuild()) {
    worker_.reset();
    co_return;
  }
  const auto destroy = [this] {
    applied_ = worker_->engine().applied();
    worker_.reset();
    body_.reset();
  };
  const auto toDevice = [this](auto task) { resources_.device.post(std::move(task)); };
  co_await runThrough(resources_.io, toDevice, destroy);
}

void ServedRun::completeRecords() {
  if (!isOpen()) return;
  for (TensorLink* const link : links()) link->recordUnacknowledged();
  record_->end(totals());
  if (isTrial_) return;
  resources_.store.whenWritten([run = owner().request().runId(), log = stored_.log,
                                serverLog = serverLog_, record = record_] {
    const auto missing = record->missing();
    if (!missing) return;
    log->error("{}", *missing);
    serverLog->error("run {}: {}", run, *missing);
  });
}

}  // namespace cleave
