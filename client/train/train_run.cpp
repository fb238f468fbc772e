#include "client/train/train_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <random>
#include <utility>

#include "client/run/earlier_run.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/codec/checkpoint_error.h"
#include "common/cohort/roster_json.h"
#include "common/core/bytes.h"
#include "common/core/clock.h"
#include "common/core/failpoint.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "common/device/torch_errors.h"
#include "common/files/sealed.h"
#include "common/files/sha256.h"
#include "common/link/edge.h"
#include "common/link/wire_messages.h"
#include "common/record/run_events.h"
#include "common/run/action_tables.h"
#include "common/run/checkpoint_file.h"
#include "common/run/fingerprint.h"

namespace cleave {

BatchView viewOf(const Batch& batch) {
  BatchView view;
  for (const BatchArray& array : batch.arrays) view.arrays.push_back(array.view());
  return view;
}

ActionSeconds actionsOfAllSides(const Coordinator& engine) {
  ActionSeconds actions = engine.ended().seconds;
  for (const BodyDone& body : engine.reports()) {
    actions[indexOf(ActionKind::bodyForward)] += body.forwardSeconds;
    actions[indexOf(ActionKind::bodyBackward)] += body.backwardSeconds;
    actions[indexOf(ActionKind::bodyWeights)] += body.weightsSeconds;
    actions[indexOf(ActionKind::reduce)] += body.reduceSeconds;
  }
  return actions;
}

namespace {

// The maximum size of a member's part of a checkpoint without codecs. `before`: its size before the
// first step, with weights and constants. Adam has two moments, train.ema an average, and with
// staleness there are older weights.
std::uint64_t maxStateBytes(std::uint64_t before, std::uint32_t staleness) {
  constexpr std::uint64_t kOfWeights = 4, kNotes = 1 << 20;
  return (kOfWeights + staleness) * before + kNotes;
}

// Random bytes that cannot be guessed.
std::string randomBytes(std::size_t count) {
  std::random_device random;
  std::string bytes;
  while (bytes.size() < count) bytes += static_cast<char>(random() & 0xff);
  return bytes;
}

// A token for the edge after each body but the last; empty if the run has no edges. New ones are
// made for each attempt, so servers that still serve an earlier one are told apart.
std::vector<std::string> makeEdgeTokens(const PreparedRun& run) {
  std::vector<std::string> tokens;
  if (!run.settings.hasEdges()) return tokens;
  for (std::size_t e = 0; e + 1 < run.bodies.size(); ++e) {
    tokens.push_back(randomBytes(kEdgeTokenBytes));
  }
  return tokens;
}

}  // namespace

TrainRun::TrainRun(PreparedRun& prepared)
    : prepared_(prepared),
      stage_(withTorchErrors([&] {
        setComputeThreads(prepared.threads);
        return ClientStage(prepared.plan.stage, *prepared.device);
      })),
      session_(*prepared.device) {}

// A file that is being written is reported to the session's server.
TrainRun::~TrainRun() {
  if (checkpointer_) checkpointer_->finishWriting();
}

namespace {

// Rethrows the current exception. A server without enough memory cannot know that only the batches
// of evaluations are that large.
[[noreturn]] void rethrowRefusal(const PreparedRun& run) {
  try {
    throw;
  } catch (const Error& error) {
    const std::uint32_t train = trainBatchOf(run.settings, run.data);
    const std::uint32_t eval = evalBatchOf(run.settings, run.data);
    if (error.key() != "train.batch" || eval <= train) throw;
    const std::string hint = fmt::format(
        "lower eval.batch, whose batches of {} samples are larger than those "
        "of train.batch, {}: --set eval.batch={}; or {}",
        eval, train, train, error.hint());
    throw RunError(error, error.what(), hint);
  }
}

}  // namespace

void TrainRun::connect(GradientCheck* check) {
  check_ = check;
  ConnectOptions options;
  options.retrySeconds = prepared_.settings.retrySeconds;
  options.progressSeconds = prepared_.settings.progressSeconds;
  // If the connection to a local server breaks, that server has exited, so a reconnection would
  // fail.
  if (prepared_.localServers.empty())
    options.reconnectSeconds = prepared_.settings.reconnectSeconds;
  options.isRestart = prepared_.isRestart;
  if (options.isRestart) {  // the server that this process has reached may be restarting
    options.retrySeconds = std::max(options.retrySeconds, options.reconnectSeconds);
  }
  options.findCause = [this] {
    for (std::size_t b = 0; b < prepared_.localServers.size(); ++b) {
      prepared_.localServers[b]->checkAlive(runIdOf(prepared_, b));
    }
  };
  options.nextHello = [folder = prepared_.folder](std::size_t server) {
    return nextHello(diskFiles(), folder, server);
  };
  options.accepted = [folder = prepared_.folder](std::size_t server) {
    storeAccepted(diskFiles(), folder, server);
  };
  try {
    // The members of a cohort compare their initial weights, whether they continue or not.
    const bool needsWeights = prepared_.plan.member || !resumes();
    if (prepared_.plan.spec.initialWeights && needsWeights) prepareWeights();
    if (prepared_.plan.member && prepared_.isResumed) findOwnCheckpoints();
    edgeTokens_ = makeEdgeTokens(prepared_);
    std::vector<ServerRequest> requests;
    for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) requests.push_back(requestFor(b));
    std::string attempt;  // per body: servers may compute several bodies, each with its own group
    for (std::size_t s = 0; s < requests.size(); ++s) {
      const Replica& replica = prepared_.bodies[s].stage.replica;
      if (replica.isAlone()) continue;
      if (replica.rank == 0) attempt = randomBytes(kAttemptBytes);
      requests[s].hello.set_attempt(attempt);
    }
    session_.connect(std::move(requests), options);
    if (check_ != nullptr && !mayFetchWeights()) {
      throw RunError("fetch-not-allowed",
                     "privacy.detect needs the body's weights, which this server does not allow "
                     "clients to fetch",
                     "set weights.fetch: true on the server, or --set privacy.detect=false")
          .about("privacy.detect");
    }
    for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) {
      checkAnswer(answer(b), prepared_.bodies[b]);
    }
    checkReplicaGroups();
    if (prepared_.plan.member) enterCohort();
    prepared_.hello.clear_take_over();  // another client may take the run over from this one later
  } catch (...) {
    session_.close("failed");
    removeUnbegun(prepared_);
    rethrowRefusal(prepared_);
  }
}

// Throws UsageError "wrong-replica" unless all replicas of a body belong to one group.
void TrainRun::checkReplicaGroups() const {
  for (std::size_t s = 0; s < prepared_.servers.size(); ++s) {
    const Replica& replica = prepared_.bodies[s].stage.replica;
    if (replica.isAlone()) continue;
    const std::string& group = answer(s).replica_group();
    if (group.size() != kSha256Bytes) {
      throw ProtocolError("bad-metadata", "a HelloOk of a replica lacks the digest of its group",
                          "install the same version of Cleave on both machines");
    }
    const std::size_t first = s - replica.rank;
    if (answer(first).replica_group() == group) continue;
    throw UsageError("wrong-replica",
                     fmt::format("{} and {} belong to different groups of replicas",
                                 prepared_.servers[first].text(), prepared_.servers[s].text()),
                     "set replicas.hosts to the same addresses in the same order in the "
                     "configurations of all replicas");
  }
}

ServerRequest TrainRun::requestFor(std::size_t body) {
  ServerRequest request{prepared_.servers[body], helloFor(prepared_, body), body};
  requestEdges(body, request.hello);
  if (prepared_.plan.member) announceMember(*request.hello.mutable_member());
  for (const RunCommit& commit : prepared_.commits) {
    wire::Commit& each = *request.hello.add_committed();
    each.set_step(commit.step);
    each.set_sha256(commit.servers.at(body));
  }
  if (!bodyWeights_.empty()) {
    request.hello.set_weights_sha256(sha256Of(textOf(*bodyWeights_[body])));
  }
  return request;
}

void TrainRun::announceMember(wire::Member& member) {
  const Datasets& data = prepared_.data;
  member = past_;
  member.set_name(settings().member);
  member.set_train_samples(data.train->size());
  member.set_evaluation_samples(data.test->size());
  member.set_share_values(stage_.shareSize());
  member.mutable_agreed()->insert(prepared_.agreed.begin(), prepared_.agreed.end());
  std::vector<NamedTensor> weights = weightsOf(stage_.head());
  for (NamedTensor& tensor : weightsOf(stage_.tail())) weights.push_back(std::move(tensor));
  const std::vector<std::byte> file = toSafetensors(weights);
  (*member.mutable_agreed())["initial weights"] = hexOf(sha256Of(textOf(file)));
  if (settings().cohort.needsAll()) return;
  stateBytes_ = maxStateBytes(toSafetensors(stage_.save()).size(), settings().staleness);
  if (settings().cohort.isRelay()) {
    sealKey_ = readSealKey(settings().cohortKeyFile);
    const std::string ofKey = settings().cohort.id + "\n" + sealKey_;
    (*member.mutable_agreed())["cohort.key_file"] = "key " + hexOf(sha256Of(ofKey)).substr(0, 16);
    stateBytes_ += kSealBytes;
    member.set_rounds(turnLengthOf(settings()).rounds());
  }
  member.set_state_bytes(stateBytes_);
}

wire::Member TrainRun::announcement() {
  if (prepared_.plan.spec.initialWeights) prepareWeights();
  wire::Member member;
  announceMember(member);
  return member;
}

// All members that take part are known now. Throws ProtocolError unless all servers know the same
// ones.
void TrainRun::enterCohort() {
  const std::vector<std::string>& names = settings().cohort.members;
  const Roster roster = rosterFromWire(answer().cohort(), settings().cohort);
  for (std::size_t b = 1; b < prepared_.bodies.size(); ++b) {
    if (rosterFromWire(answer(b).cohort(), settings().cohort) == roster) continue;
    throw ProtocolError("bad-metadata", "the servers have other members of the cohort",
                        "end the run at all members, and start it again");
  }
  std::vector<RunPlan*> plans = {&prepared_.plan};
  for (RunPlan& body : prepared_.bodies) plans.push_back(&body);
  joinMembers(prepared_.plan.spec, roster, stage_.shareSize(), plans);
  const std::vector<std::uint32_t>& present = prepared_.plan.joint->present();
  const auto number = std::ranges::find(names, settings().member) - names.begin();
  const auto place = std::ranges::find(present, static_cast<std::uint32_t>(number));
  if (place == present.end()) {
    throw ProtocolError("bad-metadata",
                        "the server's list of those who take part lacks this member",
                        "install the same version of Cleave on both machines");
  }
  // Otherwise a server could name samples that this member does not have.
  if (roster.train[static_cast<std::size_t>(number)] != data().train->size() ||
      roster.evaluation[static_cast<std::size_t>(number)] != data().test->size()) {
    throw ProtocolError("bad-metadata", "the server has other numbers of this member's samples",
                        "install the same version of Cleave on both machines");
  }
  prepared_.plan.member = static_cast<std::uint32_t>(place - present.begin());
  recordLength(prepared_);
  const auto& joining = answer().joining();
  joins_ = std::ranges::find(joining, static_cast<std::uint32_t>(number)) != joining.end();
  const auto hasState = [&](std::uint32_t each) {
    return std::ranges::find(joining, each) == joining.end();
  };
  const auto sender = std::ranges::find_if(present, hasState);
  const bool isRelay = settings().cohort.isRelay();  // the server has the state
  const bool isPossible =
      isRelay ? present.size() == 1
              : sender != present.end() && (joining.empty() || !settings().cohort.needsAll());
  if (!isPossible) {
    throw ProtocolError("bad-metadata", "members join that cannot",
                        "install the same version of Cleave on both machines");
  }
  if (!isRelay) sender_ = *sender;
  if (joins_) {
    prepared_.commits.clear();
    ownCheckpoints_.clear();
  }
  // The others may have committed a checkpoint of which this member has saved its part, but was
  // interrupted before it committed it too.
  for (const RunCommit& own : ownCheckpoints_) {
    const bool isKnown =
        std::ranges::find(prepared_.commits, own.step, &RunCommit::step) != prepared_.commits.end();
    if (!isKnown && isAvailable(own.step)) prepared_.commits.push_back(own);
  }
  std::ranges::sort(prepared_.commits, std::ranges::greater(), &RunCommit::step);
  const std::uint64_t from = resumes() ? resumeStep() : 0;
  if (prepared_.plan.joint->roster().attendance.back().firstStep > from + 1) {
    throw ProtocolError("bad-metadata", "members are to take part from a later step on",
                        "install the same version of Cleave on both machines");
  }
  if (prepared_.totalSteps() < from) {
    throw UsageError("bad-config",
                     fmt::format("train.epochs and train.max_steps give the run {}, but it has "
                                 "already done {}",
                                 countText(prepared_.totalSteps(), "step"), from),
                     "raise them at all members")
        .about("train.epochs");
  }
  if (resumes()) bodyWeights_.clear();
  if (isRelay && !answer().checkpoints()) {
    throw UsageError(
        "bad-cohort",
        "a member hands its checkpoint on at the end of its turn, but this server makes "
        "none",
        "set checkpoints.allowed in the server's configuration")
        .about("cohort.mode");
  }
  if (isRelay) return announceTurn(from);
  std::vector<std::string> absent = names;
  for (const std::uint32_t each : present) std::erase(absent, names[each]);
  if (!absent.empty()) {
    processLog()->warn("the cohort {} without {}", resumes() ? "goes on" : "begins",
                       fmt::join(absent, ", "));
  }
  if (!prepared_.isResumed && !joins_) return;
  if (resumes()) {
    processLog()->info("the cohort continues from step {}", from);
  } else {
    processLog()->warn(
        "the cohort has no checkpoint that all members have, so the run starts over "
        "from step 0");
  }
}

void TrainRun::announceTurn(std::uint64_t from) const {
  if (!hasTurn()) return processLog()->info("all turns are over: fetching the model");
  processLog()->info("turn {} of {}: steps {} to {}",
                     prepared_.turn() / settings().cohort.size() + 1,
                     turnLengthOf(settings()).rounds(), from + 1, prepared_.totalSteps());
}

void TrainRun::findOwnCheckpoints() {
  constexpr std::size_t kMax = 8;
  ownCheckpoints_.clear();
  past_.Clear();
  const CheckpointStore store(diskFiles(), prepared_.folder);
  for (const CheckpointInfo& each : store.list()) {
    if (ownCheckpoints_.size() == kMax) break;
    const auto own = store.find(each.step, each.sha256);
    if (!own) continue;
    CheckpointContent content;
    try {
      content = readCheckpoint(store, *own, digestOf(prepared_.plan.spec));
    } catch (const RunError& error) {
      processLog()->warn("the checkpoint of step {} cannot be used: {}", each.step, error.what());
      continue;
    }
    wire::OwnState& state = *past_.add_saved();
    state.set_step(each.step);
    state.set_evaluated(content.engine.evaluated);
    const auto notes = nlohmann::json::parse(content.notes);
    if (ownCheckpoints_.empty()) ownSpent_ = notes.value("spent", nlohmann::json());
    if (!past_.has_plan() && notes.contains("cohort")) {
      toWire(rosterFromJson(notes.at("cohort")), *past_.mutable_plan());
    }
    ownCheckpoints_.push_back(
        {each.step, each.sha256, std::vector<std::string>(prepared_.bodies.size())});
  }
}

// Whether all servers have a checkpoint of this step.
bool TrainRun::isAvailable(std::uint64_t step) const {
  return allAnswers([&](const wire::HelloOk& ok) {
    return std::ranges::find(ok.available(), step) != ok.available().end();
  });
}

// Asks for direct links to the servers of the neighbouring bodies.
void TrainRun::requestEdges(std::size_t body, wire::Hello& hello) const {
  if (edgeTokens_.empty()) return;
  if (body > 0) hello.mutable_edge_before()->set_token(edgeTokens_[body - 1]);
  if (body == edgeTokens_.size()) return;
  const auto& addresses = settings().directAddresses;
  wire::Edge& after = *hello.mutable_edge_after();
  after.set_token(edgeTokens_[body]);
  after.set_run_id(runIdOf(prepared_, body + 1));
  after.set_address(addresses.empty() ? prepared_.servers[body + 1].text() : addresses[body]);
}

// Call before connecting, because the Hellos contain the digests of the bodies' weights.
void TrainRun::prepareWeights() {
  const std::vector<NamedTensor> weights = initialWeights(prepared_);
  stage_.importWeights(weights);
  const std::vector<int> cuts = prepared_.plan.stage.allCuts();
  for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
    const auto file = std::make_shared<const std::vector<std::byte>>(
        toSafetensors(selectWeights(weights, prepared_.plan.blocks, cuts[b], cuts[b + 1])));
    bodyWeights_.insert(bodyWeights_.end(), replicasOf(prepared_.settings, b), file);
  }
}

bool TrainRun::mayFetchWeights() const {
  return allAnswers([](const wire::HelloOk& ok) { return ok.weights_allowed(); });
}

bool TrainRun::mayMakeCheckpoints() const {
  return allAnswers([](const wire::HelloOk& ok) { return ok.checkpoints(); });
}

bool TrainRun::allAnswers(const std::function<bool(const wire::HelloOk& ok)>& holds) const {
  for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) {
    if (!holds(answer(b))) return false;
  }
  return true;
}

void TrainRun::start(DecideFunction decide, const Options& options) {
  traffic_ = options.traffic;
  if (traffic_ != nullptr) traffic_->dropOpen();
  const RunIdentity identity{prepared_.hello.run_id(), answer().session(),
                             knownConnections(diskFiles(), prepared_.folder).generation};
  files_ = std::make_shared<RunFiles>(recorder_, prepared_.folder, identity,
                                      settings().scores.names(), options.rotateBytes, nullptr,
                                      prepared_.isResumed, settings().cohort.atOnce() > 1);
  files_->observe(options.metrics);
  if (prepared_.plan.member) {
    writeCohortFile({});
    session_.onMissing([this](const auto& members) { writeCohortFile(members); });
  }
  if (options.tensorBoard) {
    const auto events = std::make_shared<RunEvents>(recorder_, prepared_.folder + "/tensorboard",
                                                    settings().scores.names());
    events->configuration(settings().resolved);
    files_->writeEvents(events);
  }
  const bool makesCheckpoints = options.checkpoints && settings().checkpoint.enabled();
  if (makesCheckpoints && !mayMakeCheckpoints()) {
    processLog()->warn(
        "the server does not allow checkpoints (checkpoints.allowed), so the run starts over after "
        "a crash");
  }
  ClientSession::SavedFunction saved;
  if (makesCheckpoints && mayMakeCheckpoints()) {
    std::vector<RunCommit> commits = prepared_.commits;
    if (resumes()) {
      const std::uint64_t step = resumeStep();
      std::erase_if(commits, [&](const RunCommit& commit) { return commit.step > step; });
    }
    std::function<void(const Saved&)> savedHere;
    if (prepared_.plan.member && !settings().cohort.isRelay()) {
      savedHere = [this](const Saved& own) { session_.reportSaved(own); };
    }
    checkpointer_ = std::make_unique<Checkpointer>(
        diskFiles(), prepared_.folder, prepared_.settings.checkpoint,
        fingerprintOf(prepared_.threads, prepared_.device->description()), std::move(commits),
        prepared_.replicas(), [this] { recorder_.sync(); }, std::move(savedHere));
    saved = [checkpointer = checkpointer_.get()](std::size_t body, const Saved& each) {
      checkpointer->saved(body, each);
    };
  }
  StepFetch stepFetch = options.stepFetch;
  std::vector<TrafficObserver*> observers;
  if (traffic_ != nullptr) observers.push_back(traffic_);
  if (check_ != nullptr) {
    observers.push_back(check_);
    check_->beginSession();
    stepFetch = [this](std::uint64_t step) {
      return check_->isDue(step) ? std::optional(kWeightsBody) : std::nullopt;
    };
  }
  session_.start(prepared_.plan, prepared_.bodies, options.errorEvery,
                 clientActions(stage_, prepared_.threads, std::move(decide)), std::move(stepFetch),
                 files_, std::move(saved), std::move(observers), joins_ ? stateBytes_ : 0);
}

// For the report: who takes part, as far as it is known, and for whom the others wait.
void TrainRun::writeCohortFile(const std::vector<std::string>& waitsFor) const {
  nlohmann::json json = toJson(prepared_.plan.joint->roster());
  json["id"] = settings().cohort.id;
  json["members"] = settings().cohort.members;
  json["member"] = settings().member;
  json["waits_for"] = waitsFor;
  diskFiles().write(prepared_.folder + "/cohort.json", json.dump(2) + "\n");
}

// ---- Initial weights and checkpoints ----

void TrainRun::loadWeights() {
  if (prepared_.isResumed) {
    forgetAfter(0);
    continueAt(0);
  }
  std::vector<SharedBytes> weights = std::exchange(bodyWeights_, {});
  if (prepared_.plan.member.value_or(0) > 0) weights.clear();  // the first member sends them
  for (std::size_t b = 0; b < weights.size(); ++b) {
    if (!answer(b).weights_stored()) {
      session_.sendWeights(b, std::move(weights[b]));
      continue;
    }
    processLog()->info("the server already has the body's weights: {} are not sent",
                       bytesText(static_cast<double>(weights[b]->size())));
    weights[b].reset();
  }
  session_.waitForBodies();
}

// Returns the newest commit that all servers also have.
const RunCommit& TrainRun::chooseCommit() const {
  std::string steps;
  for (const RunCommit& commit : prepared_.commits) {
    if (isAvailable(commit.step)) return commit;
    steps += (steps.empty() ? "" : ", ") + std::to_string(commit.step);
  }
  throw RunError(
      "no-checkpoint",
      fmt::format("{} no undamaged checkpoint of the run's steps {}",
                  prepared_.bodies.size() == 1 ? "the server has" : "the servers have in common",
                  steps),
      isRunDone(diskFiles(), prepared_.folder)
          ? withoutCheckpointHint(prepared_.folder)
          : fmt::format("to start over from step 0: {} --from-start", prepared_.resumeCommand))
      .about("--resume");
}

// Call only if it resumes.
std::uint64_t TrainRun::resumeStep() const {
  return joins_ ? std::ranges::max(answer().available()) : chooseCommit().step;
}

void TrainRun::checkExact(const CheckpointInfo& own) const {
  const std::string here = fingerprintOf(prepared_.threads, prepared_.device->description());
  std::size_t body = 0;  // the first one whose server is not exact
  while (body < prepared_.bodies.size() && answer(body).exact()) ++body;
  const bool areExact = body == prepared_.bodies.size();
  if (prepared_.allowInexact || (own.fingerprint == here && areExact)) return;
  const std::string difference =
      own.fingerprint == here
          ? "the server now computes with " + answer(body).fingerprint() + ", unlike before"
          : "the client now computes with " + here + ", but before with " + own.fingerprint;
  throw UsageError("inexact",
                   "the results would differ from those of an uninterrupted run: " + difference,
                   "use the same machines, devices and threads as before, or add --allow-inexact")
      .about("--resume");
}

// Call when all sides have the state of this step.
void TrainRun::continuedAt(std::uint64_t step) {
  continueAt(step);
  StepRow row;
  row.phase = "resume";
  row.step = step;
  files_->step(row, session_.totals());
}

// A killed process loses the rows of its last second, so the servers' rows are counted too.
void TrainRun::continueAt(std::uint64_t step) {
  continueRun(prepared_, step);
  ResumePoint point;
  point.step = step;
  point.generation = knownConnections(diskFiles(), prepared_.folder).generation;
  point.recorded = lastRecordedStep(prepared_.folder);
  point.beginsTurn = beginsTurn();
  for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) {
    point.servers.push_back(answer(b).recorded_step());
  }
  resumeCounts_ = countResume(diskFiles(), prepared_.folder, point);
}

// In a cohort, removes this member's checkpoints of later steps: the others were not all able to
// continue from them, and the steps after `step` are computed again, perhaps with other members.
void TrainRun::forgetAfter(std::uint64_t step) const {
  if (!prepared_.plan.member) return;
  CheckpointStore(diskFiles(), prepared_.folder).removeAfter(step);
}

// A state is opened with the context that it was sealed with, so the server cannot pass on the
// state of another cohort or step.
std::string TrainRun::sealContext(std::uint64_t step) const {
  return fmt::format("{}\n{}\n{}", settings().cohort.id, step, digestOf(prepared_.plan.spec));
}

// Waits for another member's part of the checkpoint, and opens it if it is sealed.
Blob TrainRun::receiveState(std::uint64_t step, const std::string& name) {
  Blob state = session_.waitForState();
  if (!settings().cohort.isRelay()) return state;
  auto opened = openSealed(sealKey_, sealContext(step), state.bytes);
  if (!opened) {
    throw UsageError(
        "cannot-open",
        name + " cannot be opened: it was sealed with another key, or has been changed",
        "use the same file for cohort.key_file at all members")
        .about("cohort.key_file");
  }
  const auto bytes = std::make_shared<const std::vector<std::byte>>(*std::move(opened));
  return {state.flow, {bytes->data(), bytes->size()}, bytes};
}

// Continues with another member's part of the checkpoint.
nlohmann::json TrainRun::restoreFromSender() {
  const std::uint64_t step = resumeStep();
  const bool isRelay = settings().cohort.isRelay();
  const std::string name =
      isRelay ? "the state from the end of the last turn"
              : "the state that " + settings().cohort.members[sender_] + " has sent";
  const Blob state = receiveState(step, name);
  const CheckpointContent content =
      readCheckpoint(textOf(state.bytes), digestOf(prepared_.plan.spec), name);
  if (content.engine.applied != step) {
    throw badCheckpoint(
        fmt::format("{} is of step {} instead of {}", name, content.engine.applied, step));
  }
  nlohmann::json notes = nlohmann::json::parse(content.notes);
  if (!notes.is_object() || notes.value("steps", nlohmann::json()) != step) {
    throw badCheckpoint(name + " has notes of another step");
  }
  if (isRelay) {
    notes = ofThisMember(std::move(notes));
  } else {
    for (const char* const ofSender : {"spent", "kept", "target"}) notes.erase(ofSender);
    if (!ownSpent_.is_null()) notes["spent"] = ownSpent_;
  }
  stage_.restore(tensorsOf(content.stage, name));
  // Those of this member may be of steps that the others did not make.
  removeCheckpoints(prepared_.folder);
  session_.resume(content.engine, {});
  continuedAt(step);
  return notes;
}

namespace {

// Of the notes of a checkpoint in a relay: what each member has of its own.
constexpr const char* kResults[] = {"spent", "best",    "kept",      "target",
                                    "stop",  "samples", "last_eval", "train_seconds"};
constexpr const char* kResultsFile = "/turn.json";  // of this member, after its last turn

// Without the results of the member that has made them.
nlohmann::json withoutResults(nlohmann::json notes) {
  for (const char* const each : kResults) notes.erase(each);
  notes["samples"] = 0;
  notes["train_seconds"] = 0;
  notes["epoch_steps"] = 0;
  notes["epoch_seconds"] = 0;
  notes["epoch_metrics"] = {{"samples", 0}, {"sums", nlohmann::json::object()}};
  return notes;
}

}  // namespace

nlohmann::json TrainRun::ofThisMember(nlohmann::json notes) const {
  notes = withoutResults(std::move(notes));
  const auto text = diskFiles().read(prepared_.folder + kResultsFile);
  if (!text) return notes;
  const auto own = nlohmann::json::parse(*text, nullptr, false);
  if (!own.is_object()) {
    processLog()->warn("{}{} is damaged, so the results of earlier turns are not known",
                       prepared_.folder, kResultsFile);
    return notes;
  }
  for (const char* const each : kResults) {
    if (own.contains(each)) notes[each] = own.at(each);
  }
  return notes;
}

std::vector<std::byte> TrainRun::stateToSend(const CheckpointContent& own) const {
  std::string notes = own.notes;
  if (settings().cohort.isRelay()) notes = withoutResults(nlohmann::json::parse(notes)).dump();
  const PartState state{own.engine, own.spec, notes, {}};
  return checkpointFile(state, writeSafetensors(own.stage));
}

std::uint64_t TrainRun::allTurns() const {
  return turnLengthOf(settings()).rounds() * settings().cohort.size();
}

bool TrainRun::hasTurn() const {
  return settings().cohort.isRelay() && prepared_.turn() < allTurns();
}

bool TrainRun::hasTurnsAfter() const { return prepared_.turn() + 1 < allTurns(); }

void TrainRun::handOver(const nlohmann::json& notes) {
  const std::uint64_t step = prepared_.totalSteps();
  const CheckpointStore store(diskFiles(), prepared_.folder);
  const auto commits = readCommits(diskFiles(), prepared_.folder);
  const bool isCommitted = !commits.empty() && commits.front().step == step;
  const auto own = isCommitted ? store.find(step, commits.front().client) : std::nullopt;
  if (!own) {
    session_.throwIfEnded();
    throw RunError("no-checkpoint",
                   fmt::format("the last step of the turn, {}, has no checkpoint to hand on", step),
                   "correct what the warnings above say, and continue the run");
  }
  const CheckpointContent content = readCheckpoint(store, *own, digestOf(prepared_.plan.spec));
  const auto sealed = std::make_shared<const std::vector<std::byte>>(
      seal(sealKey_, sealContext(step), stateToSend(content)));
  diskFiles().write(prepared_.folder + kResultsFile, notes.dump(2) + "\n");
  failpoint("hand-over");
  session_.handOver(step, sealed);
  processLog()->info("the turn is over: {} handed on after step {}",
                     bytesText(static_cast<double>(sealed->size())), step);
}

nlohmann::json TrainRun::resume() {
  failpoint("restore");
  if (joins_) return restoreFromSender();
  const RunCommit& commit = chooseCommit();
  const CheckpointStore store(diskFiles(), prepared_.folder);
  const auto own = store.find(commit.step, commit.client);
  if (!own) {
    throw RunError("bad-checkpoint",
                   fmt::format("the checkpoint of step {} in {} is missing or damaged", commit.step,
                               prepared_.folder),
                   "rerun the command to continue from an older checkpoint")
        .about("--resume");
  }
  checkExact(*own);
  forgetAfter(commit.step);
  CheckpointContent content = readCheckpoint(store, *own, digestOf(prepared_.plan.spec));
  stage_.restore(tensorsOf(content.stage, "the checkpoint"));
  if (!answer().joining().empty() && settings().cohort.members[sender_] == settings().member) {
    session_.sendState(std::make_shared<const std::vector<std::byte>>(stateToSend(content)));
  }
  session_.resume(content.engine, std::move(content.codecs));
  if (checkpointer_) checkpointer_->continued(*own);
  continuedAt(commit.step);
  return nlohmann::json::parse(content.notes);
}

std::shared_ptr<PartSnapshot> TrainRun::copyState(const nlohmann::json& notes) const {
  failpoint("snapshot");
  auto part = std::make_shared<PartSnapshot>();
  part->stage = toSafetensors(stage_.save());
  part->state.engine = session_.engine().state();
  part->state.spec = digestOf(prepared_.plan.spec);
  part->state.notes = notes.dump();
  return part;
}

void TrainRun::saveCheckpoint(std::shared_ptr<PartSnapshot> part) {
  CheckpointInfo base = checkpointer_->baseOfSamples();
  part->samples = std::move(base.samples);
  session_.saveCodecs(
      base.step, [checkpointer = checkpointer_.get(), part = std::move(part)](SavedCodecs codecs) {
        part->state.codecs = std::move(codecs.states);
        part->error = codecs.error;
        checkpointer->add(part);
      });
}

// ---- Batches ----

MicroBatch TrainRun::runBatch(Phase phase, std::uint64_t step, const Batch& batch) {
  const MicroBatch at = beginBatch(phase, step, batch);
  finishBatch();
  return at;
}

bool TrainRun::mayBeginStep(std::uint64_t step) const {
  return session_.mayBegin({Phase::train, step, 0, {}});
}

MicroBatch TrainRun::beginBatch(Phase phase, std::uint64_t step, const Batch& batch) {
  const RunPlan& plan = prepared_.plan;
  const MicroBatch at{phase, step, 0, plan.division(phase, step, batch.samples())};
  BatchView view = viewOf(batch);
  const bool isShared = plan.member && !plan.spec.cohort.isRelay();
  const Share share = isShared ? at.batch.shareOfMember(*plan.member) : at.batch.all();
  if (isShared) {
    assert(at.batch.samplesOf(share) == batch.samples());
    if (share.count > 0) view.first = at.batch.offset(share.first);
    view.whole = at.batch.samples;
  }
  stage_.beginBatch(view, step);
  if (phase == Phase::train) session_.sendSamples(step, batch.numbers);
  if (traffic_ != nullptr) traffic_->begin(at, share, batch);
  if (check_ != nullptr && phase == Phase::train) {
    assert(!session_.isFetchingWeights());  // only one Fetch may be in progress
    check_->begin(step);
  }
  session_.beginBatch(at);
  return at;
}

void TrainRun::finishBatch() {
  session_.finishBatch();
  if (traffic_ != nullptr) traffic_->finish();
  failpoint("batch");
}

void TrainRun::finishRecords() {
  StepRow last;
  last.phase = "bye";
  files_->step(last, session_.totals());
  recorder_.flush();
}

}  // namespace cleave
