#include "client/run/session.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <iterator>
#include <optional>
#include <utility>

#include "common/core/log.h"
#include "common/link/transfer_order.h"

namespace cleave {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kTick{500};
constexpr double kMaxSecondsPerLook = 2;  // maximum that one look at the clock counts

}  // namespace

ClientSession::ClientSession(ComputeDevice& compute)
    : compute_(compute),
      pool_(std::make_shared<BufferPool>(BufferPool::kMaxRetained, compute.hostMemory())),
      signals_(io_.context(), SIGINT, SIGTERM),
      lastWork_(io_.context()),
      tick_(io_.context()) {
  asio::co_spawn(io_.context(), waitForSignals(), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

ClientSession::~ClientSession() {
  if (worker_) worker_->stop();
  io_.stop();
  codecs_.stop();
  // The worker and the links are destroyed before the threads and the io_context that they use.
  if (worker_) device_.detach(worker_);
  worker_.reset();
  servers_.clear();
}

// ---- Connecting ----

void ClientSession::connect(std::vector<ServerRequest> servers, const ConnectOptions& options) {
  std::vector<std::exception_ptr> errors(servers.size());
  std::atomic<std::size_t> connected = 0, failed = 0;
  for (ServerRequest& server : servers) {
    servers_.push_back(std::make_unique<ServerLink>(io_, std::move(server), options, progress_));
  }
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    servers_[s]->connect([&, s](std::exception_ptr error) {
      errors[s] = std::move(error);
      ++(errors[s] ? failed : connected);
      device_.notify();
    });
  }
  progressSeconds_ = options.progressSeconds;
  findCause_ = options.findCause;
  device_.runUntil([&] { return failed > 0 || connected == servers_.size() || interrupted_; });
  if (connected == servers_.size()) return;
  // Gives the other handshakes a second to end, so that their servers get a Bye too.
  std::atomic<bool> isLate = servers_.size() == 1;
  asio::steady_timer timer(io_.context(), std::chrono::seconds(1));
  timer.async_wait([&](const boost::system::error_code&) {
    isLate = true;
    device_.notify();
  });
  device_.runUntil([&] { return isLate || connected + failed == servers_.size(); });
  leave();
  io_.stop();  // abandons pending work, whose callbacks refer to this function's variables
  servers_.clear();
  for (const std::exception_ptr& error : errors) {
    if (error) rethrow(error);
  }
  throw interruptedError();
}

void ClientSession::rethrow(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& each) {
    if (findCause_ && each.kind() == ErrorKind::link) findCause_();
    throw;
  }
}

// Ends the connections of a run that does not start, so that the servers do not keep it.
void ClientSession::leave() {
  std::atomic<std::size_t> left = 0;
  for (const auto& server : servers_) {
    server->leave([&] {
      ++left;
      device_.notify();
    });
  }
  device_.runUntil([&] { return left == servers_.size(); });
}

// ---- The run ----

namespace {

void sayWhoIsMissing(const Missing& missing) {
  if (missing.members.empty()) {
    processLog()->info("all members of the cohort are connected again");
  } else {
    processLog()->info("waiting for members of the cohort whose connections have broken: {}",
                       fmt::join(missing.members, ", "));
  }
}

// The flows of a server that also are flows of a neighbouring server.
FlowMap<bool> innerFlows(const std::vector<RunPlan>& plans, std::size_t server) {
  const int first = plans.front().place.firstCut, last = plans.back().place.lastCut;
  FlowMap<bool> inner;
  for (const Flow flow : plans[server].flows()) {
    if (flow.cut != first && flow.cut != last) inner[flow] = true;
  }
  return inner;
}

}  // namespace

void ClientSession::start(const RunPlan& plan, const std::vector<RunPlan>& plans,
                          std::uint32_t errorEvery, ActionTable table, StepFetch stepFetch,
                          std::shared_ptr<RunFiles> files, SavedFunction saved,
                          std::vector<TrafficObserver*> observers, std::uint64_t stateBytes) {
  files_ = std::move(files);
  makesCheckpoints_ = saved != nullptr;
  places_ = placesOf(plans);
  for (const RunPlan& each : plans) replicas_.push_back(each.stage.replica);
  const std::shared_ptr<CodecQueue> codecQueue = codecs_.open();
  const auto mailbox = std::make_shared<Mailbox>(device_, plan.inFlight, servers_.size());
  hasEdges_ = plans.front().hasEdges;
  // If the inner flows cross edges, the links share an order: the bodies are then one long body.
  const auto order = hasEdges_ ? std::make_shared<TransferOrder>(Role::client, placeOfAll(places_),
                                                                 plans.front().inFlight, nullptr)
                               : nullptr;
  std::vector<BodyPeer> bodies;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    TensorLinkOptions options = linkOptions(plans[s], Role::client);
    if (hasEdges_) {
      options.elsewhere = innerFlows(plans, s);
      options.order = order;
    } else {
      options.passedOn = innerFlows(plans, s);
    }
    options.errorEvery = errorEvery;
    options.helper = helper_.get();
    options.codecQueue = codecQueue;
    if (plan.samplesOnDisk) options.samplesFolder = files_->folder();
    options.levels = levels_;
    if (s == 0) options.stateBytes = stateBytes;
    options.watched = [this](const Key&, double snrDb) {
      const std::lock_guard lock(mutex_);
      lowestSnr_ = std::min(lowestSnr_.value_or(snrDb), snrDb);
    };
    options.observers = observers;
    if (options.trace) traces_.push_back(options.trace);
    servers_[s]->start(std::move(options), pool_, callbacksFor(s, mailbox, saved));
    bodies.push_back({places_[s], servers_[s]->sharedTensors(), replicas_[s]});
  }
  EngineOptions options = engineOptions(plan);
  options.resumes = servers_.front()->resumes();
  options.hasEdges = hasEdges_;
  auto engine = std::make_unique<Coordinator>(options, bodies, std::move(stepFetch));
  engine_ = engine.get();
  worker_ = std::make_shared<EngineWorker>(
      std::move(engine), mailbox, std::move(table), [] {},
      [this](const std::exception_ptr& error) {
        failed_ = true;
        for (const auto& server : servers_) server->tensors().fail(error);
      },
      compute_.queue(), traces_.empty() ? nullptr : traces_.front());
  device_.attach(worker_);
  asksForCheckpoint_ = makesCheckpoints_ && plan.member.value_or(0) > 0;
  if (progressSeconds_ > 0) asio::co_spawn(io_.context(), tick(), asio::detached);
}

std::optional<double> ClientSession::takeLowestSnr() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lowestSnr_, std::nullopt);
}

ServerLink::Callbacks ClientSession::callbacksFor(std::size_t server,
                                                  std::shared_ptr<Mailbox> mailbox,
                                                  SavedFunction saved) {
  ServerLink::Callbacks callbacks;
  callbacks.deliver = [this, server, mailbox = std::move(mailbox),
                       saved = std::move(saved)](Message message) {
    if (const auto* each = std::get_if<Saved>(&message); each && saved) {
      if (!answersHandOver(*each)) saved(server, *each);
    } else if (const auto* drain = std::get_if<Drain>(&message)) {
      receiveDrain(*drain, server);
    } else if (const auto* missing = std::get_if<Missing>(&message)) {
      if (server != 0) return;
      sayWhoIsMissing(*missing);
      {
        const std::lock_guard lock(mutex_);
        missing_ = missing->members;
      }
      device_.notify();
    } else if (const auto* blob = std::get_if<Blob>(&message); blob && blob->flow == kStateClient) {
      {
        const std::lock_guard lock(mutex_);
        state_ = *blob;
      }
      device_.notify();
    } else {
      mailbox->deliver(std::move(message), server);
    }
  };
  callbacks.record = [files = files_](const TransferRecord& record) { files->transfer(record); };
  callbacks.reconnected = [files = files_, server](std::uint64_t session,
                                                   std::uint64_t generation) {
    files->reconnected(session, generation, server == 0);
  };
  callbacks.ended = [this](std::exception_ptr error) { linkEnded(std::move(error)); };
  return callbacks;
}

void ClientSession::receiveDrain(const Drain& drain, std::size_t server) {
  if (drain.member.empty()) {
    drained_ = Drained::byServer;
    processLog()->info("the server at {} is shutting down", servers_[server]->address().text());
  } else if (makesCheckpoints_ && drained_ == Drained::no) {
    {
      const std::lock_guard lock(mutex_);
      drain_ = drain;
    }
    drained_ = Drained::byMember;
    processLog()->info("{} {} the cohort: making a checkpoint", drain.member,
                       drain.joins ? "joins" : "is leaving");
  }
  device_.notify();
}

RunError ClientSession::drainedError() const {
  if (drained_ == Drained::byServer) {
    return RunError(ErrorKind::attempt, "shutting-down", "the server is shutting down",
                    "restart it");
  }
  const std::lock_guard lock(mutex_);
  if (drain_.joins) {
    return RunError(ErrorKind::attempt, "member-joins", drain_.member + " joins the cohort",
                    "continue the run");
  }
  return RunError(ErrorKind::attempt, "member-left", drain_.member + " has left the cohort",
                  "continue that member's run");
}

void ClientSession::linkEnded(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    ++linksEnded_;
  }
  device_.notify();
}

asio::awaitable<void> ClientSession::waitForSignals() {
  co_await signals_.async_wait(asio::use_awaitable);
  interrupted_ = true;
  if (asksForCheckpoint_) servers_.front()->sharedTensors()->send(Drain{});
  device_.notify();
  lastWork_.expires_after(kLastWork);
  lastWork_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    timeIsUp_ = true;
    device_.notify();
  });
  processLog()->info("stopping; interrupt again to exit immediately");
  co_await signals_.async_wait(asio::use_awaitable);
  ::_exit(1);
}

void ClientSession::waitUntil(const std::function<bool()>& done, Patience patience) {
  const std::atomic<bool>& isOver =
      patience == Patience::untilInterrupted ? interrupted_ : timeIsUp_;
  SteadyTime last = now();
  ProgressClock clock(last);
  bool isStuck = false;
  device_.runUntil([&] {
    handOverWeights();
    reportMissing();
    const SteadyTime time = now();
    const double passed = secondsBetween(std::exchange(last, time), time);
    // Time in which this thread computes, or the process is stopped, does not count. Without a
    // connection, ConnectOptions::reconnectSeconds applies.
    clock.exclude(isConnected() ? passed - kMaxSecondsPerLook : passed);
    isStuck = progressSeconds_ > 0 && clock.secondsWithout(*progress_, time) >= progressSeconds_;
    // If a step is decided, waits until the client has applied it too, so that head and tail are
    // from the same step as the body.
    const bool mayLeave = failed_ || !engine_->updatePending();
    return done() || (linksEnded_ > 0 && mayLeave) || isOver || isStuck;
  });
  if (done()) return;
  throwIfEnded();
  if (isStuck && !isOver) throwWithoutProgress();
  throw interruptedError();
}

void ClientSession::throwIfEnded() const {
  if (!hasEnded()) return;
  const std::lock_guard lock(mutex_);
  if (error_) rethrow(error_);
  throw RunError("server-left", "the server ended the run early", "check the server's log");
}

// Wakes the device thread, so that it notices when there is no progress.
asio::awaitable<void> ClientSession::tick() {
  while (true) {
    tick_.expires_after(kTick);
    co_await tick_.async_wait(asio::use_awaitable);
    device_.notify();
  }
}

bool ClientSession::isConnected() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const auto& server) { return server->isConnected(); });
}

void ClientSession::throwWithoutProgress() const {
  throw RunError(
      "no-progress",
      fmt::format("waited {:g} s for {}, without a step or a byte of progress: the connection is "
                  "open, but the server does not compute",
                  progressSeconds_,
                  servers_.size() == 1 ? "the server at " + servers_.front()->address().text()
                                       : "the servers"),
      "check the server's log and its load (cleave-server status); if its steps take that long, "
      "raise connect.progress_seconds");
}

void ClientSession::sendWeights(std::size_t server, SharedBytes weights) {
  engine_->sendWeights(std::move(weights), server);
}

void ClientSession::waitForBodies() {
  waitUntil([this] { return engine_->weightsInPlace(); });
}

void ClientSession::resume(const EngineState& state, std::vector<TensorCodecs::SavedState> codecs) {
  std::vector<std::vector<TensorCodecs::SavedState>> states(servers_.size());
  for (TensorCodecs::SavedState& each : codecs) {
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      if (!places_[s].contains(each.flow) || !replicas_[s].computes(each.i)) continue;
      states[s].push_back(std::move(each));  // no other link encodes or decodes the flow
      break;
    }
  }
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    servers_[s]->tensors().restoreCodecs(std::move(states[s]));
  }
  engine_->resume(state);
  waitForBodies();
}

Blob ClientSession::waitForState() {
  const auto hasArrived = [this] {
    const std::lock_guard lock(mutex_);
    return state_.has_value();
  };
  waitUntil(hasArrived);
  const std::lock_guard lock(mutex_);
  return std::move(*std::exchange(state_, std::nullopt));
}

void ClientSession::sendState(SharedBytes state) {
  servers_.front()->tensors().send(Blob{kStateClient, {state->data(), state->size()}, state, true});
}

void ClientSession::handOver(std::uint64_t step, SharedBytes state) {
  {
    const std::lock_guard lock(mutex_);
    handedOver_ = step;
  }
  sendState(std::move(state));
  const auto answer = [this] {
    const std::lock_guard lock(mutex_);
    return handOverSaved_;
  };
  waitUntil([&] { return answer().has_value(); }, Patience::untilTimeIsUp);
  const Saved saved = *answer();
  if (saved.code.empty()) return;
  throw RunError(saved.code,
                 "the server cannot keep the state for the next member: " + saved.sentence,
                 "continue the run when this has been corrected");
}

bool ClientSession::answersHandOver(const Saved& saved) {
  const std::lock_guard lock(mutex_);
  if (handedOver_ != saved.step || handOverSaved_) return false;
  handOverSaved_ = saved;
  device_.notify();
  return true;
}

// The links' codecs run in one queue, so the last link's states are the last to arrive.
void ClientSession::saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved) {
  const auto all = std::make_shared<SavedCodecs>();
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    const bool isLast = s + 1 == servers_.size();
    servers_[s]->tensors().saveCodecs(since, [all, isLast, saved](SavedCodecs codecs) {
      all->add(std::move(codecs));
      if (isLast) saved(std::move(*all));
    });
  }
}

void ClientSession::reportSaved(const Saved& saved) {
  asio::post(io_.context(),
             [link = servers_.front()->sharedTensors(), saved] { link->send(saved); });
}

void ClientSession::sendSamples(std::uint64_t step, const std::vector<std::uint32_t>& numbers) {
  for (const auto& server : servers_) server->tensors().sendSamples(step, numbers);
}

void ClientSession::runBatch(const MicroBatch& at) {
  beginBatch(at);
  finishBatch();
}

void ClientSession::beginBatch(const MicroBatch& at) {
  const bool isIdle = engine_->batchDone();  // otherwise the steps in progress end first
  // A run that makes checkpoints ends after the next one; the caller sees to that.
  if (isIdle && !makesCheckpoints_) {
    if (interrupted_) throw interruptedError();
    if (drained_ == Drained::byServer) throw endedByServer("shutting-down");
  }
  engine_->begin(at);
  // If the link is idle, a Ping measures its latency. With edges, an evaluation sends no other
  // frame to the servers in the middle, and its Pings could exceed their limit.
  if (isIdle && (!hasEdges_ || at.phase == Phase::train)) {
    for (const auto& server : servers_) server->ping();
  }
  device_.notify();
}

void ClientSession::finishBatch() {
  ++finished_;
  // Completes the current step on both sides, so that the saved parts are from the same step.
  waitUntil([&] { return engine_->batchesEnded() >= finished_; }, Patience::untilTimeIsUp);
}

// Requests the flow from each server.
void ClientSession::request(Flow flow) {
  for (std::size_t s = 0; s < servers_.size(); ++s) engine_->fetch(flow, s);
}

// The answers to request(); nullopt until all have arrived.
std::optional<std::vector<Blob>> ClientSession::blobs() const {
  std::vector<Blob> blobs;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (!engine_->blob(s)) return std::nullopt;
    blobs.push_back(*engine_->blob(s));
  }
  return blobs;
}

void ClientSession::fetchWeights(std::function<void(std::vector<Blob> bodies)> arrived) {
  if (timeIsUp_ || !engine_->batchDone()) throw interruptedError();
  weightsArrived_ = std::move(arrived);
  weights_.assign(servers_.size(), std::nullopt);
  // The requests are queued after the last Step and before the next batch, so the servers reply
  // after they have applied that step.
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (replicas_[s].rank == 0) engine_->fetch(kWeightsBody, s);
  }
}

// Takes the weights as they arrive, because the engine drops them when the next batch begins.
void ClientSession::handOverWeights() {
  if (!weightsArrived_) return;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (!weights_[s]) weights_[s] = engine_->blob(s);
  }
  std::vector<Blob> bodies;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (replicas_[s].rank > 0) continue;
    if (!weights_[s]) return;
    bodies.push_back(*weights_[s]);
  }
  weights_.clear();
  std::exchange(weightsArrived_, nullptr)(std::move(bodies));
}

void ClientSession::reportMissing() {
  std::optional<std::vector<std::string>> missing;
  {
    const std::lock_guard lock(mutex_);
    missing = std::exchange(missing_, std::nullopt);
  }
  if (missing && missingFunction_) missingFunction_(*missing);
}

void ClientSession::waitForWeights() {
  waitUntil([this] { return !weightsArrived_; }, Patience::untilTimeIsUp);
}

std::vector<Blob> ClientSession::fetch(Flow flow) {
  const auto waitFor = [this](const std::function<bool()>& done) {
    waitUntil(done, Patience::untilTimeIsUp);
  };
  waitFor([this] { return !weightsArrived_; });
  waitFor([this] { return engine_->appliedByPeers() == engine_->applied(); });
  request(flow);
  waitFor([this] { return blobs().has_value(); });
  return *blobs();
}

void ClientSession::close(const std::string& reason) {
  if (!worker_) {
    leave();
    return servers_.clear();
  }
  worker_->stop();  // because the memory that it borrows from a batch may already be freed
  for (const auto& server : servers_) server->sayBye(reason);
  device_.runUntil([this] { return linksEnded_ == servers_.size(); });
}

std::vector<LinkSpeed> ClientSession::linkSpeeds() const {
  // Each side's estimate may be too high, because buffers absorb some of the bytes.
  const auto lesser = [](double here, double there) {
    return here == 0 || there == 0 ? std::max(here, there) : std::min(here, there);
  };
  std::vector<LinkSpeed> speeds;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    const TensorLink& link = servers_[s]->tensors();
    const auto& done = engine_->bodyDone(s);
    speeds.push_back({lesser(link.sendRate(), done ? done->receiveRate : 0),
                      lesser(link.receiveRate(), done ? done->sendRate : 0),
                      link.clock().roundTripSeconds});
  }
  return speeds;
}

Samples ClientSession::samples(const Recorder& recorder, const TlsContext* tls) {
  Samples samples = sharedSamples(recorder, *pool_, tls, compute_.memoryBytes());
  std::size_t frames = 0;
  bool isKnown = true;
  for (const auto& server : servers_) {
    const auto queued = server->queuedFrames();
    isKnown = isKnown && queued;
    frames += queued.value_or(0);
  }
  if (isKnown) samples.push_back({"outbox_entries", static_cast<double>(frames), ""});
  samples.push_back({"mailbox_entries", static_cast<double>(worker_->waiting()), ""});
  return samples;
}

LinkTotals ClientSession::totals() const {
  LinkTotals totals;
  if (!worker_) return totals;
  for (const auto& server : servers_) totals += server->tensors().totals();
  return totals;
}

}  // namespace cleave
