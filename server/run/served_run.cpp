#include "server/run/served_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/failpoint.h"
#include "common/core/log.h"
#include "common/files/sha256.h"
#include "common/link/edge.h"
#include "common/run/action_tables.h"
#include "common/device/torch_errors.h"
#include "server/run/hello.h"
#include "server/store/on_thread.h"
#include "stage/remote_body.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kPoll{10};  // looks for work that has ended

// "block 2" or "blocks 2 to 4"
std::string blocksText(const RunPlan& plan) {
  const int first = plan.stage.cuts.cut0, last = plan.stage.cuts.cut1 - 1;
  return first == last ? fmt::format("block {}", first)
                       : fmt::format("blocks {} to {}", first, last);
}

// Looks again and again, because what ends on other threads does not say so. `isTrue` must outlive
// the call.
asio::awaitable<void> waitUntil(asio::any_io_executor io, const std::function<bool()>& isTrue) {
  asio::steady_timer pause(io);
  while (!isTrue()) {
    pause.expires_after(kPoll);
    co_await pause.async_wait(asio::use_awaitable);
  }
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
             [this](const RunError& error) { edgeFailed(error); }) {
  seats_.push_back(std::make_unique<Seat>(*this, resources, std::move(request), std::move(ticket),
                                          std::move(failed)));
}

ServedRun::~ServedRun() = default;

// ---- Opening ----

asio::awaitable<void> ServedRun::open() {
  co_await openRecords();
  mailbox_ = std::make_shared<Mailbox>(resources_.device, plan_.inFlight);
  if (engineOptions(plan_).reduces) {
    // Identities cannot join each other's groups. The client's random attempt keeps strangers out.
    replicas_ = std::make_shared<RunReplicas>(
        *resources_.replicas, owner().request().identity + "/" + hexOf(hello().attempt()));
  }
  if (resources_.stages != nullptr) stageMemory_.emplace(plan_);
  openLinks();
  worker_ = makeWorker();
  // Builds the model as the worker's first action, so that the Hello is answered without waiting
  // for the device, and the build time is charged to the session.
  worker_->buildFirst([this] { return build(); });
}

asio::awaitable<void> ServedRun::openRecords() {
  const RunRequest& request = owner().request();
  const int asked = static_cast<int>(std::min(request.spec.serverThreads, 1024u));
  threads_ =
      chooseThreads(usableCores(), asked, resources_.settings.threads, request.clientIsLocal);
  if (!isTrial_) {
    const std::string spec = digestOf(request.spec);
    stored_ = co_await resources_.store.open(
        request.identity, request.hello, spec, request.session, threads_.threads,
        namesWeights() ? maxWeightsBytes(plan_) : 0, samplesDiskBytes(plan_));
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
  options.account = account_ = std::make_shared<MemoryAccount>(transitBytes(plan_));
  options.codecQueue = codecQueue_ = resources_.codecs.open();
  trace_ = options.trace;
  const auto deliver = [mailbox = mailbox_, replicas = replicas_](Message message) {
    if (replicas && std::holds_alternative<TensorMessage>(message)) replicas->join();
    mailbox->deliver(std::move(message));
  };
  const auto record = [files = stored_.files](const TransferRecord& each) {
    files->transfer(each);
  };
  edges_.takeFlows(options);
  const auto pool = stageMemory_ ? stageMemory_->inputs : resources_.pool;
  edges_.start(options, pool, deliver, record);
  owner().open(
      std::make_shared<TensorLink>(std::move(options), pool, resources_.io,
                                   TensorLink::Callbacks{deliver, record, owner().failed()}));
}

// The clients learn from this server why the run ends.
void ServedRun::edgeFailed(const RunError& error) {
  failFunction()(std::make_exception_ptr(
      RunError(error, fmt::format("{} (from the server of {})", error.what(), blocksText(plan_)),
               error.hint())));
}

std::vector<TensorLink*> ServedRun::links() const {
  if (!isOpen()) return {};
  std::vector<TensorLink*> links = edges_.links();
  for (const auto& seat : seats_) links.push_back(seat->link().get());
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
  auto worker = std::make_shared<EngineWorker>(
      std::make_unique<Participant>(
          options, plan_.place,
          std::vector<std::shared_ptr<EngineLink>>{edges_.with(owner().link())}),
      mailbox_, ActionTable{}, [this] { finishedBatch(); }, failFunction(),
      resources_.compute.queue(), trace_);
  worker->limitActions(resources_.settings.actionSeconds);
  return worker;
}

std::unique_ptr<Body> ServedRun::makeBody() {
  if (resources_.stages != nullptr) {
    auto process = startStage(*resources_.stages, plan_, threads_.threads, *stageMemory_,
                              resources_.settings.allowCheckpoints);
    process_ = process->untilEnded();
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
  setComputeThreads(threads_.threads);
  body_ = makeBody();
  ActionTable table = bodyActions(*body_, threads_.threads, mayFetchWeights(),
                                  {[this](const StepDecision& decision) { snapshot(decision); },
                                   [this](const Resume& resume) { return restore(resume); }},
                                  reduceFunction());
  if (auto* const remote = dynamic_cast<RemoteBody*>(body_.get())) remote->startActions(table);
  if (replicas_) {
    // Tests make the weights of one replica differ.
    ActionFunction& update = table[indexOf(ActionKind::update)];
    update = [inner = std::move(update)](Work work) {
      if (failingCall("replica-update") != 0) std::get<StepDecision>(work.input).clipFactor /= 2;
      return inner(std::move(work));
    };
  }
  if (stored_.weights && !hasStoredWeights()) {
    ActionFunction& function = table[indexOf(ActionKind::importBlob)];
    function = [this, import = std::move(function)](Work work) {
      return importAndKeep(import, std::move(work));
    };
  }
  return table;
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
  std::vector<std::shared_ptr<TensorLink>> clients;
  for (const auto& seat : seats_) clients.push_back(seat->link());
  return [clients = std::move(clients), hasFailed = hasFailed_](const std::exception_ptr& error) {
    *hasFailed = true;
    for (const auto& link : clients) link->fail(error);
  };
}

// ---- Initial weights ----

// Loads the weights as if they had arrived from the client.
void ServedRun::loadStoredWeights() {
  stored_.weights->load(
      resources_.pool->chargedTo(account_),
      [mailbox = mailbox_](Blob weights) { mailbox->deliver(std::move(weights)); }, failFunction());
}

Result ServedRun::importAndKeep(const ActionFunction& import, Work work) {
  Blob weights = std::get<Blob>(work.input);
  Result result = import(std::move(work));
  // The memory for unpacking is no longer needed. It is now available for weights that the client
  // fetches while these are being written.
  account_->raiseLimit(unpackedWeightsBytes(plan_));
  stored_.weights->keep(std::move(weights));
  return result;
}

// ---- Checkpoints ----

void ServedRun::snapshot(const StepDecision& decision) {
  // Allows one snapshot at a time: each holds a copy of the state, and admission has counted only
  // one.
  if (isSaving()) {
    throw ProtocolError(
        "too-many-in-flight",
        fmt::format("step {} asks for a checkpoint before the last one is saved", decision.step));
  }
  snapshot_ = std::make_shared<RunCheckpoints::Snapshot>();
  snapshot_->keep = decision.keep;
  saving_ = snapshot_;
  if (!stored_.checkpoints) return;
  failpoint("snapshot");
  const SteadyTime begin = now();
  snapshot_->stage = body_->saveFile();
  snapshot_->state.spec = stored_.checkpoints->spec();
  snapshot_->hasReplicas = plan_.spec.replicas > 1;
  snapshot_->seconds = secondsSince(begin);
}

// Called after the step has been recorded, and before the next step's first computation.
void ServedRun::saveSnapshot() {
  std::shared_ptr<RunCheckpoints::Snapshot> snapshot = std::exchange(snapshot_, nullptr);
  snapshot->state.engine = worker_->engine().state();
  snapshot->state.notes = record_->notes();
  const auto reply = [io = resources_.io, link = owner().link(), runLog = stored_.log,
                      faults = checkpointFaults_](const Saved& saved) {
    if (runLog && !saved.code.empty() && faults->isNew(saved.code)) {
      runLog->warn("no checkpoint of step {}: {}", saved.step, saved.sentence);
    } else if (runLog && saved.code.empty() && faults->recovered()) {
      runLog->info("checkpoints are made again: the last one is of step {}", saved.step);
    }
    asio::post(io, [link, saved] { link->send(saved); });
  };
  if (!stored_.checkpoints) {
    Saved refused;
    refused.step = snapshot->state.engine.applied;
    refused.code = "no-checkpoints";
    refused.sentence = "this server makes no checkpoints";
    return reply(refused);
  }
  CheckpointInfo base = stored_.checkpoints->baseOfSamples(snapshot->keep);
  snapshot->samples = std::move(base.samples);
  // Runs after this step's commit, which is already in the queue.
  saveCodecs(base.step, [checkpoints = stored_.checkpoints, snapshot = std::move(snapshot),
                         reply](SavedCodecs codecs) mutable {
    snapshot->state.codecs = std::move(codecs.states);
    snapshot->error = codecs.error;
    checkpoints->save(std::move(snapshot), reply);
  });
}

// The links' codecs run in one queue, so the last link's states are the last to arrive.
void ServedRun::saveCodecs(std::uint64_t since,
                           std::function<void(SavedCodecs saved)> saved) const {
  const auto codecs = std::make_shared<SavedCodecs>();
  const std::vector<TensorLink*> all = links();
  for (TensorLink* const link : all) {
    link->saveCodecs(since, [codecs, saved, isLast = link == all.back()](SavedCodecs ofLink) {
      codecs->add(std::move(ofLink));
      if (isLast) saved(std::move(*codecs));
    });
  }
}

void ServedRun::restoreCodecs(std::vector<TensorCodecs::SavedState> states) const {
  for (TensorLink* const edge : edges_.links()) {
    const auto isOwn = [&](const auto& state) { return edge->carries(state.flow); };
    const auto own = std::stable_partition(states.begin(), states.end(), std::not_fn(isOwn));
    edge->restoreCodecs(std::vector<TensorCodecs::SavedState>(
        std::make_move_iterator(own), std::make_move_iterator(states.end())));
    states.erase(own, states.end());
  }
  owner().link()->restoreCodecs(std::move(states));
}

EngineState ServedRun::restore(const Resume& resume) {
  failpoint("restore");
  const auto& available = stored_.available;
  if (std::find(available.begin(), available.end(), resume.step) == available.end()) {
    throw ProtocolError(
        "unexpected-message",
        fmt::format("Resume names step {}, which is not one of HelloOk.available", resume.step));
  }
  const Checkpoint checkpoint = stored_.checkpoints->read(resume.step);
  CheckpointContent content = stored_.checkpoints->contentOf(checkpoint);
  body_->restoreFile(writeSafetensors(content.stage));
  restoreCodecs(std::move(content.codecs));
  record_->resumed(resume.step, content.notes, totals());
  return content.engine;
}

void ServedRun::finish() {
  if (stored_.checkpoints) stored_.checkpoints->finish(resources_.settings.keepFinished);
}

// ---- Seats ----

void ServedRun::connected(const Seat& seat) {
  usage_.connected();
  stored_.files->reconnected(seat.session(), seat.lastConnection().generation);
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
  for (const std::uint64_t step : stored_.available) ok.add_available(step);
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
  record_->begin(totals());
  resources_.device.attach(worker_, owner().request().identity);
  isServing_ = true;
  if (hasStoredWeights()) loadStoredWeights();
  if (isDraining_) drain();
}

asio::awaitable<void> ServedRun::finishWork() {
  const std::function<bool()> isDone = [this] { return !worker_->hasWork() || *hasFailed_; };
  co_await waitUntil(resources_.io, isDone);
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
  if (snapshot_) saveSnapshot();
}

void ServedRun::drain() {
  isDraining_ = true;
  if (!isServing_) return;  // start() handles it
  const Drain drain{std::chrono::duration<double>(resources_.settings.drain).count()};
  for (const auto& seat : seats_) seat->link()->send(drain);
}

bool ServedRun::hasWork() const {
  if (!isServing_ || worker_->hasWork()) return true;
  const bool isLoading = hasStoredWeights() && isUsingWeightsStore();
  return isLoading || std::ranges::any_of(links(), &TensorLink::hasCodecWork);
}

void ServedRun::describe(SessionStatus& status) const {
  status.model = plan_.stage.model.name;
  status.pace = pace_.state();
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
  if (isOpen()) edges_.close();
  if (replicas_) replicas_->abort();
  if (worker_) co_await closeWorker();
  // They hold memory of this run, use its folder, or report to the device.
  const std::function<bool()> areDone = [this] {
    return process_.expired() && !isSaving() && !isUsingWeightsStore() && !edges_.isServing() &&
           !isInGroup();
  };
  co_await waitUntil(resources_.io, areDone);
  if (isOpen()) {
    completeRecords();
    const LinkTotals totals = this->totals();
    log(spdlog::level::info, fmt::format("session {}: {} steps applied, {} bytes up, {} bytes down",
                                         owner().session(), applied_, totals.up(), totals.down()));
  }
  if (!codecQueue_) co_return;
  const auto whenIdle = [this](auto task) { codecQueue_->cancel(std::move(task)); };
  const auto resume = [] {};
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
    snapshot_.reset();  // snapshot of a step that failed before it was recorded
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
