#include "common/run/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/checkpoint/samples_base.h"
#include "common/cohort/member_part.h"
#include "common/core/printable.h"
#include "common/core/random.h"
#include "common/files/environment.h"
#include "common/files/identity.h"
#include "common/graph/packed_graph.h"
#include "common/link/tensor_link.h"
#include "common/model/blocks.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/stage/deterministic_scope.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// Exceeds what experiments need, and is small enough that products with it fit 64 bits.
constexpr std::int64_t kMaxSampleElements = std::int64_t{1} << 28;

[[noreturn]] void refuse(const std::string& sentence, const std::string& hint = "") {
  throw UsageError("bad-run-spec", sentence, hint);
}

ModelSpec modelSpec(const RunSpec& spec, const GraphBlocks& graphBlocks) {
  const bool isGraph = spec.model.name == "graph";
  if (isGraph == spec.graph.empty())
    refuse("the model is 'graph' and the graph is missing, or a graph is given for another model");
  ModelSpec model = spec.model;
  if (isGraph) {
    model.graphBlocks = graphBlocks ? graphBlocks : blocksOfBody(unpackGraph(spec.graph));
    return model;
  }
  if (model.sampleShape.empty() || model.sampleShape.size() >= kMaxRank) {
    refuse("a sample has " + std::to_string(model.sampleShape.size()) + " dimensions");
  }
  std::int64_t elements = 1;
  for (const std::int64_t dim : model.sampleShape) {
    if (dim <= 0 || dim > kMaxSampleElements || (elements *= dim) > kMaxSampleElements) {
      refuse("a sample's shape is empty or too large");
    }
  }
  if (model.classes < 2) refuse("a classifier needs at least 2 classes");
  return model;
}

void checkFreeze(const RunSpec& spec) {
  constexpr std::size_t kMaxPatterns = 64, kMaxLength = 256;
  bool isLong =
      spec.freeze.size() > kMaxPatterns || spec.optimizer.groups.size() > kMaxParameterGroups;
  for (const std::string& pattern : spec.freeze) isLong = isLong || pattern.size() > kMaxLength;
  for (const ParameterGroup& group : spec.optimizer.groups) {
    isLong = isLong || group.match.size() > kMaxLength;
  }
  if (isLong) {
    refuse("there are more than 64 patterns of parameters, or one has more than 256 characters",
           "use * in train.freeze and train.groups");
  }
}

// Codecs without levels.
CodecPlan codecsOf(const RunSpec& spec, const Place& place, const std::vector<BlockSpec>& blocks,
                   const Cuts& cuts) {
  CodecPlan codecs(place.flows());
  for (const auto& [name, parsed] : spec.codecs) {
    const auto flow = flowFromName(name);
    if (!flow || codecs.find(*flow) == nullptr) {
      std::string known;
      for (const auto& [each, codec] : codecs) {
        if (each.tensor == 0) known += (known.empty() ? "" : ", ") + flowName(each);
      }
      refuse("'" + name + "' is not a flow with a codec", "use one of " + known);
    }
    codecs[*flow].own = parsed.codec;
  }
  for (auto& [flow, codec] : codecs) {
    if (codec.own) continue;
    // Additional tensors of a cut use the codec of its first one, if they have floats.
    if (!isFloat(flowSpec(blocks, cuts, flow, 1).dtype)) {
      codec.own = makeIntegerCodec();
    } else {
      codec.own = flow.tensor > 0 ? codecs.at({flow.kind, flow.cut, 0}).own : makeCodec("none");
    }
  }
  return codecs;
}

// Adds the codecs of CodecLevel::eight, for the flows that have levels.
void addEightBitCodecs(RunPlan& plan) {
  const std::shared_ptr<const Codec> eight = makeCodec("block:bits=8");
  for (auto& [flow, codec] : plan.codecs) {
    if (!hasRawFormat(*codec.own)) continue;
    const TensorSpec tensor = flowSpec(plan.blocks, plan.stage.cuts, flow, plan.spec.maxBatch);
    const bool isSmaller = codec.own->maxEncodedBytes(tensor) < eight->maxEncodedBytes(tensor);
    codec.eight = isSmaller ? eight : codec.own;
  }
}

// Codecs that keep samples need the samples' numbers, and tensors with one row per sample. They are
// for activations: those of a sample change little from epoch to epoch, unlike its gradients.
void checkKeptSamples(const RunSpec& spec, const Codec& codec, Flow flow,
                      const std::vector<BlockSpec>& blocks, const Cuts& cuts) {
  if (!codec.keepsSamples()) return;
  const std::string name = "codec " + codec.spec();
  if (spec.replicas > 1) {
    throw UsageError("bad-codec-spec",
                     name +
                         " sends the changes of a sample since the last epoch, but a body's "
                         "replicas compute other samples in each epoch",
                     "use another codec, such as block:bits=8")
        .about("codec");
  }
  if (!isActivation(flow)) {
    throw UsageError(
        "bad-codec-spec", name + " cannot encode " + flowName(flow),
        "use it for activations only, as in codec: {activation/0: delta(block:bits=4)}")
        .about("codec");
  }
  for (const std::uint32_t samples : {1, 2}) {
    const TensorSpec tensor = flowSpec(blocks, cuts, flow, samples);
    if (!tensor.shape.empty() && tensor.shape.front() == std::int64_t{samples}) continue;
    throw UsageError("bad-codec-spec",
                     name + " cannot encode " + flowName(flow) +
                         ", because the first dimension of its tensors is not the batch",
                     "choose another cut, or another codec")
        .about("codec");
  }
  if (spec.trainSamples > 0) return;
  refuse(name + " needs the number of training samples, which the run spec lacks");
}

// Codecs with state would have to keep the state of each version of the weights. `tensor`: of the
// largest batch.
void checkStateless(const RunSpec& spec, const Codec& codec, Flow flow, TensorSpec tensor) {
  if (spec.staleness == 0) return;
  bool hasState = codec.keepsSamples() || codec.memory(tensor).state > 0;
  // Some codecs have no state for small tensors.
  for (std::uint32_t samples = spec.maxBatch; samples > 0 && !hasState; samples /= 2) {
    tensor.shape.front() = samples;
    hasState = codec.memory(tensor).state > 0;
  }
  if (!hasState) return;
  throw UsageError("bad-staleness",
                   "codec " + codec.spec() + " of " + flowName(flow) +
                       " keeps state from step to step, which is not supported with staleness",
                   "use another codec, such as block:bits=8, or set train.staleness to 0");
}

void checkBatch(const RunSpec& spec) {
  if (spec.trainBatch > spec.maxBatch) refuse("train_batch is above max_batch");
  if (spec.microBatches <= spec.maxBatch) return;
  refuse("a batch of " + std::to_string(spec.maxBatch) + " samples cannot be split into " +
             std::to_string(spec.microBatches) + " micro-batches",
         "set train.micro_batches in 1…train.batch");
}

}  // namespace

std::vector<Place> placesOf(std::span<const RunPlan> bodies) {
  std::vector<Place> places;
  for (const RunPlan& body : bodies) places.push_back(body.place);
  return places;
}

void checkStaleness(const Schedule& schedule, std::uint32_t staleness) {
  if (staleness == 0 || schedule.overlapsSteps) return;
  throw UsageError("bad-staleness",
                   "the schedule " + std::string(schedule.name) +
                       " ends each step before the next one begins, so steps cannot overlap",
                   "set train.schedule to priority, 1f1b or zb, or train.staleness to 0");
}

// Codecs that keep samples need the numbers of a batch before its tensors. They come from the
// client, so the tensors of another server may overtake them.
void checkEdgeCodecs(const RunPlan& plan, bool hasEdgeBefore, bool hasEdgeAfter) {
  for (const auto& [flow, codec] : plan.codecs) {
    const bool isConcerned = hasEdgeBefore || (hasEdgeAfter && flow.cut == plan.place.lastCut);
    if (!isConcerned || !codec.own->keepsSamples()) continue;
    throw UsageError("bad-codec-spec",
                     "codec " + codec.own->spec() + " of " + flowName(flow) +
                         " keeps samples, which is not supported by direct links between servers",
                     "use another codec for this flow, or set connect.direct to false")
        .about("codec");
  }
}

void checkReplicas(const RunSpec& spec, const Schedule& schedule) {
  if (spec.replicas > kMaxBodyReplicas || spec.replica >= spec.replicas) {
    refuse("replica " + std::to_string(spec.replica) + " of " + std::to_string(spec.replicas) +
           " is not in 0…" + std::to_string(kMaxBodyReplicas - 1));
  }
  if (spec.microBatches < spec.replicas) {
    refuse("a batch of " + std::to_string(spec.microBatches) +
               " micro-batches has none for some of " + std::to_string(spec.replicas) + " replicas",
           "set train.micro_batches to a multiple of the number of replicas");
  }
  if (spec.replicas > 1 && spec.bodies > 1 && schedule.isStrict && schedule.overlapsSteps) {
    refuse("the schedule " + std::string(schedule.name) +
               " does not support both several bodies and replicas",
           "set train.schedule to priority");
  }
  if (spec.replicas > 1 && spec.staleness > 0 && !supportsStaleness(schedule, spec.replicas)) {
    throw UsageError("bad-staleness",
                     "the schedule " + std::string(schedule.name) +
                         " does not support both staleness and replicas",
                     "set train.schedule to priority, or train.staleness to 0");
  }
}

namespace {

constexpr std::uint64_t kMaxShareValues = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 40;

[[noreturn]] void refuseCohort(const std::string& sentence, const std::string& hint,
                               const std::string& key) {
  throw UsageError("bad-cohort", sentence, hint).about(key);
}

}  // namespace

void checkCohort(const RunSpec& spec, const CodecPlan& codecs) {
  const Cohort& cohort = spec.cohort;
  if (!cohort.exists()) {
    if (!cohort.members.empty()) refuse("there are members, but no id of a cohort");
    return;
  }
  if (cohort.members.empty() || cohort.size() > kMaxMembers) {
    refuseCohort("a cohort has " + std::to_string(cohort.size()) + " members",
                 "list 1 to " + std::to_string(kMaxMembers) + " names in cohort.members",
                 "cohort.members");
  }
  for (const std::string& name : cohort.members) {
    // The server has folders with these names.
    if (isClientName(name) && std::ranges::count(cohort.members, name) == 1) continue;
    refuseCohort(
        "cohort.members has '" + printable(name) + "' twice, or no certificate can have this name",
        "list the name of each member's certificate once: lower case, digits and hyphens",
        "cohort.members");
  }
  for (const auto& [key, needed] : {std::pair("cohort.min_members", cohort.minMembers),
                                    std::pair("cohort.begin_members", cohort.beginMembers)}) {
    if (needed <= cohort.size()) continue;
    refuseCohort("a cohort of " + std::to_string(cohort.size()) + " members cannot need " +
                     std::to_string(needed),
                 "lower it, or list more members in cohort.members", key);
  }
  const std::uint32_t needed = cohort.needsAll() ? cohort.size() : cohort.minMembers;
  if (cohort.neededToBegin() < needed) {
    refuseCohort("the run would begin with " + std::to_string(cohort.beginMembers) +
                     " members, but needs " + std::to_string(needed) + " to go on",
                 "set cohort.min_members to a number up to that one", "cohort.begin_members");
  }
  if (cohort.mode != kJoint && cohort.mode != kRelay) {
    refuseCohort(fmt::format("'{}' is not a mode of a cohort", printable(cohort.mode)),
                 fmt::format("use {} or {}", kJoint, kRelay), "cohort.mode");
  }
  if (cohort.isRelay() && (cohort.minMembers > 0 || cohort.beginMembers > 0)) {
    refuseCohort("in a relay, one member trains at a time, so it needs no others",
                 "remove cohort.min_members and cohort.begin_members",
                 cohort.minMembers > 0 ? "cohort.min_members" : "cohort.begin_members");
  }
  if (cohort.order != kByMember && cohort.order != kGlobal) {
    refuseCohort(fmt::format("'{}' is not an order of a cohort", printable(cohort.order)),
                 fmt::format("use {} or {}", kByMember, kGlobal), "cohort.order");
  }
  if (cohort.isRelay() && (spec.bodies > 1 || spec.replicas > 1)) {
    refuseCohort("a cohort whose members take turns needs a single server",
                 "use one server, or set cohort.mode to joint", "cohort.mode");
  }
  if (!cohort.needsAll() && (spec.bodies > 1 || spec.replicas > 1)) {
    refuseCohort("a cohort that may go on without a member needs a single server",
                 "set cohort.min_members to 0, or use one server", "cohort.min_members");
  }
  if (cohort.batch == 0 || cohort.evalBatch == 0 ||
      std::max(cohort.batch, cohort.evalBatch) > spec.maxBatch ||
      spec.microBatches > cohort.batch) {
    refuse("the batches of the cohort do not fit the run");
  }
  for (const auto& [flow, codec] : codecs) {
    if (codec.own->keepsSamples()) {
      refuseCohort("codec " + codec.own->spec() + " of " + flowName(flow) +
                       " keeps samples, which is not supported in a cohort",
                   "use another codec, such as block:bits=8", "codec");
    }
  }
  for (const InsertSpec& insert : spec.inserts) {
    if (insert.kind != "pca") continue;
    refuseCohort("an insert of kind pca tracks the samples of one client",
                 "use kind: conv or linear, with train.freeze: [insert.*]", "insert");
  }
  if (spec.codecLevels) {
    refuseCohort("the quality of codecs cannot be checked in a cohort", "set quality.every to 0",
                 "quality.every");
  }
}

void joinMembers(const RunSpec& spec, Roster roster, std::uint64_t shareValues,
                 std::span<RunPlan*> plans) {
  if (shareValues > kMaxShareValues) {
    refuseCohort("head and tail have " + std::to_string(shareValues) + " trained values",
                 "move more of the model to the server", "model.cuts");
  }
  const auto check = [](const std::vector<std::uint32_t>& byMember, std::uint64_t min,
                        const std::string& kind) {
    constexpr std::uint64_t kMax = std::uint64_t{1} << 31;
    const std::uint64_t samples =
        std::accumulate(byMember.begin(), byMember.end(), std::uint64_t{});
    if (samples >= min && samples <= kMax) return;
    refuseCohort("the members have " + std::to_string(samples) + " " + kind + " samples together",
                 std::to_string(min) + " to " + std::to_string(kMax) + " are possible",
                 "cohort.members");
  };
  check(roster.train, 1, "training");
  check(roster.evaluation, 0, "evaluation");
  const auto joint = std::make_shared<const JointPlan>(
      JointPlan::Options{spec.seed, spec.cohort.batch, spec.cohort.evalBatch, spec.microBatches,
                         spec.cohort.isRelay()},
      std::move(roster));
  for (RunPlan* const plan : plans) {
    plan->joint = joint;
    if (!spec.cohort.isRelay()) plan->partBytes = maxPartBytes(shareValues);
  }
}

RunPlan planRun(const RunSpec& spec) {
  return planReplica(planClient(spec, {}, nullptr), spec.replica);
}

RunPlan planReplica(RunPlan plan, std::uint32_t rank) {
  const Replica replica{rank, plan.spec.replicas};
  if (replica.isAlone()) return plan;
  plan.spec.replica = rank;
  plan.stage.replica = replica;
  const Division batch = plan.divide(plan.maxBatch);
  if (plan.spec.cohort.exists()) {  // its batches are divided in many ways
    plan.microBatches = (plan.microBatches + replica.count - 1) / replica.count;
    plan.maxBatch = std::min(plan.maxBatch, plan.microBatches * batch.largest());
  } else {
    const Share share = replica.shareOf(batch.all());
    plan.microBatches = share.count;
    // An upper bound for all batches: the first replicas have the larger micro-batches.
    plan.maxBatch = batch.samplesOf(share);
  }
  plan.inFlight = inFlightOf(plan.inFlight, replica.count, plan.microBatches, plan.spec.staleness);
  return plan;
}

RunPlan planClient(const RunSpec& spec, const std::vector<int>& innerCuts,
                   const GraphBlocks& graphBlocks) {
  RunPlan plan;
  plan.spec = spec;
  plan.stage = {spec};
  plan.stage.model = modelSpec(spec, graphBlocks);
  const auto number = static_cast<int>(spec.cutNumber);
  plan.stage.cuts = {static_cast<int>(spec.cut0), static_cast<int>(spec.cut1), number,
                     number + static_cast<int>(innerCuts.size()) + 1};
  plan.stage.innerCuts = innerCuts;
  if (spec.cutNumber >= spec.bodies) refuse("cut_number is not that of one of the bodies");
  if (spec.inserts.size() > kMaxInsertsPerCut * (innerCuts.size() + 2)) {
    refuse("there are more inserts than the cuts may have");
  }
  checkFreeze(spec);
  plan.stage.headIsFrozen = spec.headIsFrozen;
  checkOptimizer(spec.optimizer);
  checkDeviceBits(spec.deviceBits);
  plan.blocks = blocksFor(plan.stage);
  plan.place = placeOfBody(plan.blocks, plan.stage.cuts);

  plan.schedule = &findSchedule(spec.schedule);
  checkBatch(spec);
  for (const Flow flow : plan.flows()) {
    if (!flowSpec(plan.blocks, plan.stage.cuts, flow, spec.maxBatch).checkedElements()) {
      refuse("the tensor of " + flowName(flow) + " would be too large");
    }
  }
  plan.stage.splitsBackward = plan.schedule->splitsBackward;
  checkStaleness(*plan.schedule, spec.staleness);
  checkReplicas(spec, *plan.schedule);
  plan.stage.replica = {0, spec.replicas};
  plan.maxKeptSamples = spec.trainSamples;
  plan.microBatches = spec.microBatches;
  plan.maxBatch = spec.maxBatch;
  if (spec.cohort.atOnce() > 1) {
    plan.microBatches = maxMicroBatches(spec.microBatches, spec.cohort.atOnce());
    plan.stage.microBatches = plan.microBatches;  // as many have batch-norm statistics
  }
  const std::uint32_t inProgress = plan.microBatches * (spec.staleness + 1);
  plan.inFlight = resolveInFlight(*plan.schedule, spec.inFlight, inProgress, spec.bodies);
  if (!plan.place.limitsInFlight()) plan.inFlight = inProgress;
  plan.codecs = codecsOf(spec, plan.place, plan.blocks, plan.stage.cuts);
  for (const auto& [flow, codec] : plan.codecs) {
    const TensorSpec tensor = flowSpec(plan.blocks, plan.stage.cuts, flow, spec.maxBatch);
    checkAccepts(*codec.own, tensor, flowName(flow));
    checkKeptSamples(spec, *codec.own, flow, plan.blocks, plan.stage.cuts);
    checkStateless(spec, *codec.own, flow, tensor);
  }
  checkCohort(spec, plan.codecs);
  if (spec.codecLevels) addEightBitCodecs(plan);
  if (spec.watchEvery > 0 && !spec.codecLevels) refuse("watch_every is set without codec_levels");
  if (spec.trace.steps > 0 && spec.trace.first == 0) refuse("the trace begins before step 1");
  return plan;
}

void useDeviceCodecs(RunPlan& plan, ComputeDevice& device) {
  if (device.gpu() == nullptr) return;
  for (auto& [flow, codec] : plan.codecs) {
    codec.ownOnDevice = makeDeviceCodec(codec.own, *device.gpu());
    plan.stage.staysOnDevice[flow] = codec.ownOnDevice != nullptr;
    if (codec.ownOnDevice && codec.hasLevels()) {
      codec.eightOnDevice = makeDeviceCodec(codec.eight, *device.gpu());
    }
  }
}

EngineOptions engineOptions(const RunPlan& plan) {
  EngineOptions options;
  options.schedule = plan.schedule;
  options.microBatches = plan.spec.microBatches;
  options.inFlight = plan.inFlight;
  options.bodies = plan.spec.bodies;
  options.initialWeights = plan.spec.initialWeights;
  options.staleness = plan.spec.staleness;
  options.replica = plan.stage.replica;
  options.reduces = shareSize(plan) > 0;
  if (plan.joint) {
    options.planned = [joint = plan.joint](const MicroBatch& at) {
      return joint->division(at.phase, at.step);
    };
  }
  if (plan.joint && !plan.spec.cohort.isRelay()) {
    options.member = plan.member;
    options.sumsMembers = plan.spec.cutNumber == 0 && plan.stage.replica.rank == 0;
    options.byMember = plan.spec.cohort.isByMember();
  }
  return options;
}

std::int64_t outputSize(const RunPlan& plan) {
  const Shape& shape = plan.blocks.back().outputShape();
  return shape.empty() ? 0 : shape.back();
}

TensorLinkOptions linkOptions(const RunPlan& plan, Role role) {
  TensorLinkOptions options;
  options.role = role;
  options.place = plan.place;
  // Each replica has random numbers of its own.
  const Replica& replica = plan.stage.replica;
  options.seed = replica.isAlone()
                     ? plan.stage.seed
                     : randomBits(randomKey(plan.stage.seed, "replica"), replica.rank);
  options.replicas = replica.count;
  options.microBatches = plan.stage.microBatches;
  options.inFlight = plan.inFlight;
  options.trainSamples = plan.spec.trainSamples;
  options.maxBatch = plan.spec.maxBatch;
  options.codecs = plan.codecs;
  options.hasCodecLevels = plan.spec.codecLevels;
  options.watchEvery = plan.spec.watchEvery;
  options.spec = [blocks = plan.blocks, cuts = plan.stage.cuts](Flow flow, std::uint32_t samples) {
    return flowSpec(blocks, cuts, flow, samples);
  };
  if (plan.joint) {
    options.partBytes = plan.partBytes;
    options.divide = [joint = plan.joint](Phase phase, std::uint64_t step, std::uint32_t) {
      return joint->division(phase, step);
    };
  }
  options.priority = plan.schedule->linkPriority;
  options.maxBlobBytes = maxWeightsBytes(plan);
  options.initialWeights = plan.spec.initialWeights;
  options.rawNonFinite = plan.spec.rawNonFinite;
  if (plan.spec.trace.steps > 0) options.trace = std::make_shared<TraceRecorder>(plan.spec.trace);
  return options;
}

namespace {

// Returns a double, because sums of the sizes that a client requests may exceed any integer type.
double bufferBytes(std::size_t size) { return static_cast<double>(BufferPool::capacityFor(size)); }

std::size_t asSize(double bytes) { return static_cast<std::size_t>(std::min(bytes, 0x1p62)); }

CodecMemory codecMemory(const RunPlan& plan, Flow flow) {
  return plan.codecs.at(flow).own->memory(
      flowSpec(plan.blocks, plan.stage.cuts, flow, plan.largestMicroBatch()));
}

// Codec memory outside the account: working memory for one tensor, because a session encodes or
// decodes one at a time, and the committed and staged states of all micro-batches.
double codecBytes(const RunPlan& plan) {
  constexpr double kTables = 8 << 20;  // histograms and code books; independent of tensor sizes
  double working = 0;
  double states = 0;
  for (const Flow flow : plan.flows()) {
    const CodecMemory memory = codecMemory(plan, flow);
    working = std::max(working, static_cast<double>(memory.working));
    states += 2.0 * static_cast<double>(memory.state);
  }
  // The sample numbers of two batches.
  const double numbers = 2.0 * sizeof(std::uint32_t) * plan.maxBatch;
  return kTables + working + plan.microBatches * states + samplesMemory(plan) + numbers;
}

// The maximum numbers of micro-batches in flight.
struct InFlight {
  std::uint32_t number = 0;
  // If all had the largest size. Those of a cohort may be smaller.
  std::uint32_t ofLargest = 0;
};

// On a server, those of all members of a cohort together, each of which has W.
InFlight inFlightOn(const RunPlan& plan, Role role) {
  const std::uint64_t steps = plan.spec.staleness + 1;
  const std::uint64_t links = role == Role::server ? plan.spec.cohort.atOnce() : 1;
  const std::uint64_t inProgress =
      std::max<std::uint64_t>(plan.inFlight, plan.microBatches * steps);
  const auto number = static_cast<std::uint32_t>(std::min(plan.inFlight * links, inProgress));
  if (plan.spec.cohort.atOnce() == 1) return {number, number};
  const std::uint64_t samples = plan.maxBatch * steps, largest = plan.largestMicroBatch();
  const std::uint64_t ofLargest = (samples + largest - 1) / largest;
  return {number, static_cast<std::uint32_t>(std::min<std::uint64_t>(number, ofLargest))};
}

// Buffers for a tensor of each micro-batch in flight. `largest`: its bytes in a micro-batch of the
// largest size; `ofSample`: in one of a single sample.
double inFlightBytes(const InFlight& inFlight, std::size_t largest, std::size_t ofSample) {
  const std::uint32_t others = inFlight.number - inFlight.ofLargest;
  if (others == 0) return inFlight.ofLargest * bufferBytes(largest);
  // Small buffers have a minimum size; others are at most a quarter larger than the tensor.
  const auto withGap = [](std::size_t size) {
    return std::max(bufferBytes(size), 1.25 * static_cast<double>(size));
  };
  return inFlight.ofLargest * withGap(largest) + others * withGap(ofSample);
}

double bodyBytes(const RunPlan& plan, const PartLoad& load) {
  // Without gradients at its last cut, the body has no backward and keeps nothing for one.
  const bool hasBackward = plan.place.contains(gradientAt(plan.place.lastCut));
  const InFlight inFlight = hasBackward ? inFlightOn(plan, Role::server) : InFlight();
  PartLoad ofBody = load;
  ofBody.smaller = inFlight.number - inFlight.ofLargest;
  return static_cast<double>(partBytes(plan.stage, plan.blocks, plan.stage.cuts.cut0,
                                       plan.stage.cuts.cut1, plan.stage.microBatches,
                                       inFlight.ofLargest, ofBody));
}

}  // namespace

std::size_t shareSize(const RunPlan& plan) {
  return plan.stage.replica.isAlone() ? 0 : maxShareSize(plan.stage, plan.blocks);
}

double sampleCacheBytes(const RunPlan& plan) {
  double perSample = 0;
  for (const Flow flow : plan.flows()) {
    perSample += static_cast<double>(codecMemory(plan, flow).perSample);
  }
  return perSample * plan.spec.trainSamples;
}

double samplesMemory(const RunPlan& plan) {
  double index = 0;
  double flows = 0;
  for (const Flow flow : plan.flows()) {
    if (codecMemory(plan, flow).perSample == 0) continue;
    index += static_cast<double>(SampleCache::kIndexBytes) * plan.spec.trainSamples;
    ++flows;
  }
  if (plan.samplesOnDisk) return index;
  // Rows that are not kept use no memory, but a row may use the rest of two pages.
  constexpr double kPages = 8192;
  const double all = sampleCacheBytes(plan);
  const double share =
      static_cast<double>(plan.maxKeptSamples) / std::max(1U, plan.spec.trainSamples);
  return std::min(all, index + (all - index) * share + flows * kPages * plan.maxKeptSamples);
}

std::size_t samplesDiskBytes(const RunPlan& plan) {
  return plan.samplesOnDisk ? asSize(2 * (sampleCacheBytes(plan) - samplesMemory(plan))) : 0;
}

double flowBytes(const RunPlan& plan, Role role) {
  const TensorLinkOptions link = linkOptions(plan, role);
  const InFlight inFlight = inFlightOn(plan, role);
  double bytes = 0;
  for (const Flow flow : plan.flows()) {
    const TensorSpec largest = link.spec(flow, plan.largestMicroBatch());
    const TensorSpec ofSample = link.spec(flow, 1);
    bytes += inFlightBytes(inFlight, largest.bytes(), ofSample.bytes()) +
             inFlightBytes(inFlight, link.maxEncodedBytes(flow, largest),
                           link.maxEncodedBytes(flow, ofSample));
  }
  return bytes;
}

double passedOnBytes(const std::vector<RunPlan>& bodies) {
  double bytes = 0;
  if (bodies.front().hasEdges) return bytes;
  for (const RunPlan& body : bodies) {
    const TensorLinkOptions link = linkOptions(body, Role::client);
    for (const Flow flow : body.flows()) {
      // Counts only flows that the body receives from another body, so that each is counted once.
      // Flows from the head or the tail are not passed on.
      const bool isFromHead = flow == activationAt(bodies.front().place.firstCut);
      const bool isFromTail = flow == gradientAt(bodies.back().place.lastCut);
      if (!body.place.isUp(flow) || isFromHead || isFromTail) continue;
      const TensorSpec spec = link.spec(flow, body.largestMicroBatch());
      bytes += body.inFlight * bufferBytes(link.maxEncodedBytes(flow, spec));
    }
  }
  return bytes;
}

namespace {

// The encoded tensors that a micro-batch sends forwards.
double answerBytes(const RunPlan& plan) {
  const TensorLinkOptions link = linkOptions(plan, Role::server);
  double bytes = 0;
  for (const Flow flow : activationsOf(plan.place.lastCut, plan.place.last)) {
    const TensorSpec spec = link.spec(flow, plan.largestMicroBatch());
    bytes += bufferBytes(link.maxEncodedBytes(flow, spec));
  }
  return bytes;
}

}  // namespace

std::size_t transitBytes(const RunPlan& plan) {
  double largest = 0;
  double cuts = 0;
  for (const Flow flow : plan.flows()) {
    const TensorSpec spec = flowSpec(plan.blocks, plan.stage.cuts, flow, plan.largestMicroBatch());
    largest = std::max(largest, bufferBytes(spec.bytes()));
    cuts += static_cast<double>(codecMemory(plan, flow).cut);
  }
  // To measure its SNR, a tensor is decoded again and, on a GPU, copied to the host.
  const double measured = 2 * largest;
  // See TransferOrder::takeCredit().
  const double answered =
      plan.hasEdges ? plan.inFlight * (answerBytes(plan) + kMicroBatchBytes) : 0;
  // One client sends the initial weights, into a buffer of the pool. Weights that clients fetch are
  // not in the pool, and take exactly their size.
  const double links = plan.spec.cohort.atOnce();
  const double weights =
      bufferBytes(maxWeightsBytes(plan)) + (links - 1) * static_cast<double>(maxWeightsBytes(plan));
  const double traces = plan.spec.trace.steps > 0 ? links * bufferBytes(kMaxTraceBytes) : 0;
  const std::uint32_t inFlight = inFlightOn(plan, Role::server).number;
  return asSize(flowBytes(plan, Role::server) + inFlight * (cuts + double{kMicroBatchBytes}) +
                measured + answered + weights + traces);
}

std::size_t unpackedWeightsBytes(const RunPlan& plan) {
  return plan.spec.initialWeights ? asSize(bufferBytes(maxWeightsBytes(plan))) : 0;
}

namespace {

// Bytes of the objects that autograd and the stage keep per block and micro-batch, excluding the
// tensors.
double objectBytes(const RunPlan& plan) {
  constexpr double kBlockObjects = 8 << 10;
  return kBlockObjects * inFlightOn(plan, Role::server).number *
         (plan.stage.cuts.cut1 - plan.stage.cuts.cut0);
}

// The header of a file with the body's weights: each tensor has a line.
double weightsHeaderBytes(const RunPlan& plan) {
  constexpr double kFileHeaderBytes = 4096;
  constexpr double kHeaderBytesPerTensor = 512;
  double bytes = kFileHeaderBytes;
  for (int b = plan.stage.cuts.cut0; b < plan.stage.cuts.cut1; ++b) {
    for (const ParameterSpec& tensor : plan.blocks[static_cast<std::size_t>(b)].tensors) {
      bytes += kHeaderBytesPerTensor + static_cast<double>(tensor.name.size());
    }
  }
  return bytes;
}

// The state of a body as a file: parameters, optimizer, buffers, averages and older versions.
double stateFileBytes(const RunPlan& plan) {
  const int first = plan.stage.cuts.cut0, last = plan.stage.cuts.cut1;
  const auto parameters = static_cast<double>(parameterCount(plan.blocks, first, last));
  const auto buffers = static_cast<double>(bufferCount(plan.blocks, first, last));
  const auto perParameter =
      static_cast<double>(sizeof(float) + optimizerStateBytes(plan.stage.optimizer));
  // The newest version of the weights is saved once; so are D older ones of the trained parameters.
  const double versions = plan.spec.staleness *
                          static_cast<double>(trainedCount(plan.blocks, first, last)) *
                          sizeof(float);
  const double averages =
      plan.spec.averageDecay > 0 ? parameters * sizeof(float) + buffers * sizeof(std::int64_t) : 0;
  constexpr double kCopies = 5;  // of a parameter, at most, each with a line in the file's header
  return parameters * perParameter + buffers * sizeof(std::int64_t) + averages + versions +
         kCopies * weightsHeaderBytes(plan);
}

// The body and what it computes. For Cleave's own models, the operators' scratch memory and the
// allocator's gaps need up to 1.4 times the estimate for a step (measured: small_cnn, 1,024
// samples). That of a graph follows its operators (common/graph/graph_memory.h). If the
// micro-batches of evaluations are larger than those of training, their tensors do not fit into the
// memory that training has freed, which the allocator keeps; for Cleave's own models, the factor
// covers this. Between steps, the state leaves as a file, in pieces. Before the first step, weights
// or a state enter: the file, and a copy.
double computedBytes(const RunPlan& plan) {
  constexpr double kOperators = 1.5, kOperatorsOfGraph = 1.2;
  // Gaps between tensors of different sizes. For EfficientNet-Lite0, 1.15 was not enough in one of
  // some dozens of runs.
  constexpr double kLarger = 1.4;
  constexpr double kGraphBytes = 64 << 20;
  const bool isGraph = plan.stage.model.graphBlocks != nullptr;
  const double operators = isGraph ? kOperatorsOfGraph : kOperators;
  const auto asked = static_cast<int>(plan.spec.serverThreads);
  const double state = bodyBytes(plan, {0, 0, 0});
  const PartLoad load = plan.load(asked > 0 ? asked : usableCores());
  double passes = bodyBytes(plan, load) - state;
  if (isGraph && load.evaluation > load.training) {
    passes = bodyBytes(plan, {load.training, 0, load.threads}) - state +
             kLarger * (bodyBytes(plan, {0, load.evaluation, load.threads}) - state);
  }
  const double read =
      2 * std::max(stateFileBytes(plan), static_cast<double>(maxWeightsBytes(plan)));
  return state + std::max(operators * passes, read) + (isGraph ? kGraphBytes : 0);
}

// oneDNN keeps the code that it compiles for each operator and shape. The few sizes of one client's
// micro-batches are part of kBytes below; if several members train at once, a micro-batch may have
// any number of samples up to the largest.
double compiledBytes(const RunPlan& plan) {
  constexpr double kBytes = 64 << 10;  // per operator and shape
  constexpr double kMaxKept = 1024;    // by default
  if (plan.spec.cohort.atOnce() == 1) return 0;
  double weights = 0;
  for (int b = plan.stage.cuts.cut0; b < plan.stage.cuts.cut1; ++b) {
    for (const ParameterSpec& tensor : plan.blocks[static_cast<std::size_t>(b)].tensors) {
      weights += tensor.shape.size() > 1 ? 1 : 0;
    }
  }
  constexpr double kPasses = 4;  // forward, the two of backward, and the evaluation's forward
  return kBytes * std::min(kMaxKept, kPasses * weights * plan.largestMicroBatch());
}

// What a process has of its own: pages that it no longer shares, and the gaps of its allocator.
double ownProcessBytes(const RunPlan& plan) {
  constexpr double kBytes = 32 << 20;
  return kBytes + 2 * sizeof(float) * static_cast<double>(shareSize(plan)) + compiledBytes(plan);
}

// The gradients of the body by member, but those of one, which are part of the body.
double memberGradientBytes(const RunPlan& plan) {
  const Cohort& cohort = plan.spec.cohort;
  if (!cohort.isByMember()) return 0;
  const auto trained =
      static_cast<double>(trainedCount(plan.blocks, plan.stage.cuts.cut0, plan.stage.cuts.cut1));
  return sizeof(float) * trained * (cohort.atOnce() - 1.0) * (plan.spec.staleness + 1.0);
}

}  // namespace

std::size_t stageOutputBytes(const RunPlan& plan) {
  std::vector<Flow> flows = activationsOf(plan.place.lastCut, plan.place.last);
  const std::vector<Flow> gradients = gradientsOf(plan.place.firstCut, plan.place.first);
  flows.insert(flows.end(), gradients.begin(), gradients.end());
  double bytes = bufferBytes(kStagePieceBytes);
  for (const Flow flow : flows) {
    const TensorSpec spec = flowSpec(plan.blocks, plan.stage.cuts, flow, plan.largestMicroBatch());
    const TensorSpec ofSample = flowSpec(plan.blocks, plan.stage.cuts, flow, 1);
    bytes += 2 * (inFlightBytes(inFlightOn(plan, Role::server), spec.bytes(), ofSample.bytes()) +
                  bufferBytes(spec.bytes()));
  }
  return asSize(bytes);
}

std::size_t stageProcessBytes(const RunPlan& plan) {
  return asSize(computedBytes(plan) + memberGradientBytes(plan) + objectBytes(plan) +
                ownProcessBytes(plan));
}

std::vector<MemoryTerm> serverMemory(const RunPlan& plan) {
  // Bytes that the engine keeps per flow and micro-batch of the steps that overlap: an entry for a
  // tensor, and as much again while its list grows.
  constexpr double kEntry = 160;
  const double entries = kEntry * static_cast<double>(plan.flows().size()) * plan.microBatches *
                         (plan.spec.staleness + 1);
  // Initial weights are unpacked while the buffer they arrived in still exists. Later the server
  // may still be writing that buffer to its disk, while another one contains fetched weights.
  const auto unpacked = static_cast<double>(unpackedWeightsBytes(plan));
  const double recorded = plan.spec.trace.steps > 0 ? double{kMaxTraceBytes} : 0;
  // The share, and the reducer's buffers (GradientReducer::reduce()).
  constexpr double kReducerBytes = 4 << 20;  // per other replica
  const double reduction = sizeof(float) * static_cast<double>(shareSize(plan)) +
                           kReducerBytes * (plan.stage.replica.count - 1);
  const char* const smaller =
      "use a smaller batch (train.batch), more micro-batches (train.micro_batches) with fewer in "
      "flight (train.in_flight), or a smaller body (model.cuts)";
  const char* const fewer = "lower train.in_flight";
  const char* const fewerParameters = "give the body fewer parameters (model.cuts)";
  const char* const otherCodec =
      !plan.samplesOnDisk && samplesMemory(plan) > 0
          ? "use another codec than delta, which keeps all training samples, or fewer of them; ask "
            "the server's operator to set kept_samples.on_disk"
          : "use another codec";
  return {{"tensors in transit", static_cast<double>(transitBytes(plan)), smaller},
          {"the body's parameters, optimizer and activations", computedBytes(plan), smaller},
          {"autograd's objects", objectBytes(plan) + entries, fewer},
          {"the process of its body",
           ownProcessBytes(plan) + static_cast<double>(stageOutputBytes(plan)), smaller},
          {"unpacking the initial weights", unpacked, fewerParameters},
          {"the trace", recorded, "train without --trace"},
          {"codecs", codecBytes(plan), otherCodec},
          {"sums over replicas", reduction, fewerParameters},
          {"gradients of the body by member", memberGradientBytes(plan),
           "set cohort.order to global; a slow member then delays the others within a step"}};
}

MemoryTerm largestServerMemory(const RunPlan& plan) {
  const std::vector<MemoryTerm> terms = serverMemory(plan);
  return *std::ranges::max_element(terms, {}, &MemoryTerm::bytes);
}

std::size_t serverBytes(const RunPlan& plan) {
  double bytes = 0;
  for (const MemoryTerm& term : serverMemory(plan)) bytes += term.bytes;
  return asSize(bytes);
}

std::size_t memberBytes(std::uint64_t samples, std::uint64_t shareValues) {
  // JointPlan: the order of an epoch, and the divisions of four epochs, in batches of few samples.
  constexpr double kPerSample = 32;
  return asSize(kPerSample * static_cast<double>(samples) +
                bufferBytes(maxPartBytes(std::min(shareValues, kMaxShareValues))));
}

std::size_t cohortBytes(std::uint64_t shareValues, std::uint64_t stateBytes) {
  return asSize(2.0 * static_cast<double>(maxPartBytes(std::min(shareValues, kMaxShareValues))) +
                bufferBytes(std::min(stateBytes, kMaxStateBytes)));
}

std::size_t snapshotBytes(const RunPlan& plan) {
  double codecs = 0;
  for (const Flow flow : plan.flows()) {
    codecs += plan.microBatches * static_cast<double>(codecMemory(plan, flow).state);
  }
  return asSize(stateFileBytes(plan) + 2 * codecs + samplesMemory(plan));
}

std::uint64_t maxWeightsBytes(const RunPlan& plan) {
  double bytes = weightsHeaderBytes(plan);
  for (int b = plan.stage.cuts.cut0; b < plan.stage.cuts.cut1; ++b) {
    for (const ParameterSpec& tensor : plan.blocks[static_cast<std::size_t>(b)].tensors) {
      bytes += static_cast<double>(elementCount(tensor.shape)) *
               static_cast<double>(std::max(sizeof(float), c10::elementSize(tensor.type)));
    }
  }
  return asSize(bytes);
}

}  // namespace cleave
