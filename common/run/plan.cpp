#include "common/run/plan.h"

#include <algorithm>
#include <utility>

#include "common/link/tensor_link.h"
#include "compression/device/device_codecs.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// Larger than any experiment needs, and small enough that products of them fit 64 bits.
constexpr std::uint32_t kMaxBatch = 1 << 20;
constexpr std::uint64_t kMaxSampleElements = std::uint64_t{1} << 28;
constexpr std::uint32_t kMaxClasses = 1 << 20;

[[noreturn]] void refuse(const std::string& sentence, const std::string& hint = "") {
  throw UsageError("bad-run-spec", sentence, hint);
}

// While an action waits, the device cannot serve other runs.
double checkedWait(double milliseconds) {
  if (!(milliseconds >= 0 && milliseconds <= kMostWait)) refuse("a wait is not in 0…60000 ms");
  return milliseconds;
}

ModelSpec modelSpec(const wire::RunSpec& spec) {
  ModelSpec model;
  model.name = spec.model();
  for (const auto& [key, value] : spec.model_parameters()) model.parameters[key] = value;
  if (spec.sample_shape().empty() || spec.sample_shape_size() >= static_cast<int>(kMaxRank)) {
    refuse("a sample has " + std::to_string(spec.sample_shape_size()) + " dimensions");
  }
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : spec.sample_shape()) {
    if (dim == 0 || dim > kMaxSampleElements || (elements *= dim) > kMaxSampleElements) {
      refuse("a sample's shape is empty or too large");
    }
    model.sampleShape.push_back(static_cast<std::int64_t>(dim));
  }
  if (spec.classes() < 2 || spec.classes() > kMaxClasses) {
    refuse(std::to_string(spec.classes()) + " classes are not in 2…" + std::to_string(kMaxClasses));
  }
  model.classes = static_cast<int>(spec.classes());
  return model;
}

FlowMap<std::shared_ptr<const Codec>> codecsOf(const wire::RunSpec& spec, const Place& place) {
  FlowMap<std::shared_ptr<const Codec>> codecs(place.flows());
  for (const auto& [name, text] : spec.codecs()) {
    const auto flow = flowFromName(name);
    if (!flow || codecs.find(*flow) == nullptr) {
      refuse("'" + name + "' is not a flow with a codec",
             "flows are activation/0, activation/1, gradient/1 and gradient/0");
    }
    codecs[*flow] = makeCodec(text);
  }
  for (auto& [flow, codec] : codecs) {
    if (!codec) codec = makeCodec("none");
  }
  return codecs;
}

TraceWindow traceWindow(const wire::RunSpec& spec) {
  if (spec.trace_steps() == 0) return {};
  constexpr std::uint64_t kMostFirst = std::uint64_t{1} << 62;
  if (spec.trace_steps() > kMaxTraceSteps || spec.trace_first() < 1 ||
      spec.trace_first() > kMostFirst) {
    refuse("a trace of " + std::to_string(spec.trace_steps()) + " steps from step " +
               std::to_string(spec.trace_first()) + " is out of range",
           "ask for 1 to " + std::to_string(kMaxTraceSteps) + " steps");
  }
  return {spec.trace_first(), spec.trace_steps()};
}

}  // namespace

RunPlan planRun(const wire::RunSpec& spec) {
  RunPlan plan;
  plan.stage.model = modelSpec(spec);
  plan.blocks = findModel(spec.model()).blocks(plan.stage.model);
  constexpr std::uint32_t kMostBlocks = 1 << 16;
  plan.stage.cuts = {static_cast<int>(std::min(spec.cut0(), kMostBlocks)),
                     static_cast<int>(std::min(spec.cut1(), kMostBlocks))};
  checkCuts(plan.blocks, plan.stage.cuts);
  plan.stage.optimizer.name = spec.optimizer().name();
  for (const auto& [key, value] : spec.optimizer().parameters()) {
    plan.stage.optimizer.parameters[key] = value;
  }
  checkOptimizer(plan.stage.optimizer);
  plan.stage.seed = spec.seed();
  if (spec.precision() != "f32") refuse("the precision '" + spec.precision() + "' is not f32");
  if (spec.wait().has_f2()) plan.wait.f2 = checkedWait(spec.wait().f2());
  if (spec.wait().has_b2()) plan.wait.b2 = checkedWait(spec.wait().b2());
  checkBodyWait(plan.wait);

  plan.schedule = &findSchedule(spec.schedule());
  plan.maxBatch = spec.max_batch();
  plan.microBatches = spec.micro_batches();
  if (plan.maxBatch == 0 || plan.maxBatch > kMaxBatch) {
    refuse("a batch of " + std::to_string(plan.maxBatch) + " samples is not in 1…" +
           std::to_string(kMaxBatch));
  }
  if (plan.microBatches == 0 || plan.microBatches > plan.maxBatch) {
    refuse(std::to_string(plan.microBatches) + " micro-batches do not divide a batch of " +
               std::to_string(plan.maxBatch) + " samples",
           "train.micro_batches must be in 1…train.batch");
  }
  for (const Flow flow : plan.flows()) {
    if (!flowSpec(plan.blocks, plan.stage.cuts, flow, plan.maxBatch).checkedElements()) {
      refuse("the tensor of " + flowName(flow) + " would be too large");
    }
  }
  plan.inFlight = resolveInFlight(*plan.schedule, spec.in_flight(), plan.microBatches);
  plan.stepsPerEpoch = spec.steps_per_epoch();
  plan.codecs = codecsOf(spec, plan.place);
  plan.initialWeights = spec.initial_weights();
  plan.rawNonFinite = spec.raw_non_finite();
  plan.trace = traceWindow(spec);
  return plan;
}

void useDeviceCodecs(RunPlan& plan, ComputeDevice& device) {
  if (device.gpu() == nullptr) return;
  for (const auto& [flow, codec] : plan.codecs) {
    plan.deviceCodecs[flow] = makeDeviceCodec(codec, *device.gpu());
    plan.stage.staysOnDevice[flow] = plan.deviceCodecs[flow] != nullptr;
  }
}

EngineOptions engineOptions(const RunPlan& plan) {
  return {plan.schedule, plan.microBatches, plan.inFlight, plan.initialWeights};
}

TensorLinkOptions linkOptions(const RunPlan& plan, Role role) {
  TensorLinkOptions options;
  options.role = role;
  options.place = plan.place;
  options.seed = plan.stage.seed;
  options.microBatches = plan.microBatches;
  options.inFlight = plan.inFlight;
  options.maxBatch = plan.maxBatch;
  options.codecs = plan.codecs;
  options.deviceCodecs = plan.deviceCodecs;
  options.spec = [blocks = plan.blocks, cuts = plan.stage.cuts](Flow flow, std::uint32_t samples) {
    return flowSpec(blocks, cuts, flow, samples);
  };
  options.priority = plan.schedule->linkPriority;
  options.maxBlobBytes = maxWeightsBytes(plan);
  options.initialWeights = plan.initialWeights;
  options.rawNonFinite = plan.rawNonFinite;
  if (plan.trace.steps > 0) options.trace = std::make_shared<TraceRecorder>(plan.trace);
  return options;
}

namespace {

// In doubles, since sums of the values that a client requests may exceed any integer type.
double bufferBytes(std::size_t size) { return static_cast<double>(BufferPool::capacityFor(size)); }

std::size_t asSize(double bytes) { return static_cast<std::size_t>(std::min(bytes, 0x1p62)); }

CodecMemory codecMemory(const RunPlan& plan, Flow flow) {
  return plan.codecs.at(flow)->memory(
      flowSpec(plan.blocks, plan.stage.cuts, flow, plan.maxMicroBatchSamples()));
}

// Codec memory beyond the account: working memory for the one tensor that a session encodes or
// decodes at a time, and the states of all micro-batches, committed and staged.
double codecBytes(const RunPlan& plan) {
  constexpr double kTables = 8 << 20;  // histograms and code books; independent of tensor sizes
  double working = 0;
  double states = 0;
  for (const Flow flow : plan.flows()) {
    const CodecMemory memory = codecMemory(plan, flow);
    working = std::max(working, static_cast<double>(memory.working));
    states += 2.0 * static_cast<double>(memory.state);
  }
  return kTables + working + plan.microBatches * states;
}

}  // namespace

double flowBytes(const RunPlan& plan) {
  const TensorLinkOptions link = linkOptions(plan, Role::server);
  double bytes = 0;
  for (const Flow flow : plan.flows()) {
    const TensorSpec spec = link.spec(flow, plan.maxMicroBatchSamples());
    bytes += bufferBytes(spec.bytes()) + bufferBytes(link.maxEncodedBytes(flow, spec));
  }
  return plan.inFlight * bytes;
}

std::size_t transitBytes(const RunPlan& plan) {
  double largest = 0;
  double cuts = 0;
  for (const Flow flow : plan.flows()) {
    const TensorSpec spec =
        flowSpec(plan.blocks, plan.stage.cuts, flow, plan.maxMicroBatchSamples());
    largest = std::max(largest, bufferBytes(spec.bytes()));
    cuts += static_cast<double>(codecMemory(plan, flow).cut);
  }
  // To measure its SNR, a tensor is decoded again and, on a GPU, copied to the host.
  const double measured = 2 * largest;
  const double blob =
      bufferBytes(maxWeightsBytes(plan)) + (plan.trace.steps > 0 ? bufferBytes(kMaxTraceBytes) : 0);
  return asSize(flowBytes(plan) + plan.inFlight * (cuts + double{kMicroBatchBytes}) + measured +
                blob);
}

std::size_t serverBytes(const RunPlan& plan) {
  const auto [first, last] = plan.stage.cuts;
  // Objects that autograd and the stage keep per micro-batch, without the tensors themselves.
  constexpr double kBlockObjects = 8 << 10;
  const double objects = kBlockObjects * plan.inFlight * (last - first);
  // Initial weights are unpacked while the buffer they arrived in still exists.
  const double unpacked = plan.initialWeights ? static_cast<double>(maxWeightsBytes(plan)) : 0;
  const double recorded = plan.trace.steps > 0 ? double{kMaxTraceBytes} : 0;
  const auto body = static_cast<double>(partBytes(plan.stage, first, last, plan.microBatches,
                                                  plan.inFlight, plan.maxMicroBatchSamples()));
  return asSize(static_cast<double>(transitBytes(plan)) + body + objects + unpacked + recorded +
                codecBytes(plan));
}

std::uint64_t maxWeightsBytes(const RunPlan& plan) {
  const auto [first, last] = plan.stage.cuts;
  const auto elements =
      parameterCount(plan.blocks, first, last) + bufferCount(plan.blocks, first, last);
  // 8 bytes per element is the maximum over all dtypes. A block has a few tensors, each with a line
  // in the header.
  constexpr std::uint64_t kHeaderBytesABlock = 4096;
  return static_cast<std::uint64_t>(elements) * 8 +
         kHeaderBytesABlock * static_cast<std::uint64_t>(last - first + 1);
}

}  // namespace cleave
