#include "common/run/profiler.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/graph/packed_graph.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/split_backward.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/stage/trained_part.h"
#include "common/model/torch_tensor.h"
#include "compression/registry.h"

namespace cleave {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of `work` on the device.
template <typename Work>
double timed(ComputeDevice& device, const Work& work) {
  DeviceQueue* const queue = device.queue();
  const SteadyTime start = now();
  if (queue == nullptr) {
    work();
    return secondsSince(start);
  }
  queue->begin();
  work();
  const DeviceQueue::Seconds seconds = queue->end([] {});
  queue->drain();
  return seconds();
}

// Measured times of one block or of the loss, one per repetition.
struct Times {
  std::vector<double> forward, backward, weights;
};

// The blocks as separate parts. The tensors between two of them are detached, as at a cut.
class Blocks {
 public:
  Blocks(const RunPlan& plan, ComputeDevice& device, const ProfilerOptions& options)
      : plan_(plan),
        device_(device),
        options_(options),
        update_(static_cast<std::size_t>(options.last - options.first)) {
    for (int b = options.first; b < options.last; ++b) {
      parts_.push_back(
          std::make_unique<TrainedPart>(plan.stage, plan.blocks, b, b + 1, device.device()));
    }
    if (options.data == nullptr) return;
    batch_.emplace(plan.stage.scores, plan.blocks.back().outputShape(), device);
    batch_->begin(*options.data);
  }

  SizeProfile measure(std::uint32_t microBatches) {
    const MicroBatch at{Phase::train, 1, 0, {microBatches, options_.batch}};
    std::vector<Times> times(parts_.size());
    std::vector<double> loss;
    runStep(at, times, loss, false);  // a warm-up
    times.assign(parts_.size(), {});
    loss.clear();
    for (int repeat = 0; repeat < options_.repeats; ++repeat) runStep(at, times, loss, false);
    for (int repeat = 0; repeat < options_.repeats; ++repeat) runStep(at, times, loss, true);
    SizeProfile size{at.size(), {}, loss.empty() ? 0 : median(loss)};
    for (const Times& each : times) {
      const double backward = median(each.backward);
      size.blocks.push_back(
          {median(each.forward), backward, std::min(median(each.weights), backward)});
    }
    return size;
  }

  double updateSeconds(std::size_t part) const { return median(update_[part]); }

 private:
  const BlockSpec& blockOf(std::size_t part) const {
    return plan_.blocks[static_cast<std::size_t>(options_.first) + part];
  }

  // Returns the tensors as leaves of autograd's graph. A leaf requires a gradient if its gradient
  // would cross a cut at this position.
  static TensorList leavesOf(const TensorList& tensors, const std::vector<BlockOutput>& outputs) {
    TensorList leaves;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      leaves.push_back(tensors[t].detach());
      if (outputs[t].tensor.hasGradient && leaves.back().is_floating_point()) {
        leaves.back().set_requires_grad(true);
      }
    }
    return leaves;
  }

  // Random inputs for the first part, if it is not the model's first block.
  TensorList randomInputs(std::uint32_t samples) const {
    const auto& outputs = plan_.blocks[static_cast<std::size_t>(options_.first) - 1].outputs;
    TensorList inputs;
    for (const BlockOutput& output : outputs) {
      const TensorSpec spec = specOfOutput(output, samples);
      const at::Tensor tensor = at::zeros(spec.shape, isFloat(spec.dtype) ? at::kFloat : at::kLong);
      if (isFloat(spec.dtype)) {
        fillNormal(randomKey(1, "profile"),
                   {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
      }
      inputs.push_back(device_.toDevice(canonical(tensor, spec.order)));
    }
    return leavesOf(inputs, outputs);
  }

  // `splits`: whether to measure the weights' part of the backwards, or the whole.
  void runStep(const MicroBatch& at, std::vector<Times>& times, std::vector<double>& loss,
               bool splits) {
    const TensorList inputs = batch_ ? batch_->inputs(at) : TensorList();
    std::vector<TensorList> leaves, outputs;
    leaves.push_back(options_.first == 0 ? TensorList() : randomInputs(at.size()));
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      outputs.emplace_back();
      times[p].forward.push_back(
          timed(device_, [&] { outputs[p] = parts_[p]->forward(leaves[p], inputs, at); }));
      leaves.push_back(leavesOf(outputs[p], blockOf(p).outputs));
    }
    if (batch_) {
      loss.push_back(timed(device_, [&] { batch_->loss(leaves.back().front(), at).backward(); }));
    }
    for (std::size_t p = parts_.size(); p-- > 0;) {
      const Roots roots = rootsOf(outputs[p], leaves[p + 1]);
      if (splits) {
        SplitBackward split(roots, leaves[p]);
        times[p].weights.push_back(timed(device_, [&] { split.finish(); }));
      } else {
        times[p].backward.push_back(timed(device_, [&] { backward(roots); }));
      }
      outputs[p].clear();
      leaves.pop_back();
    }
    update();
  }

  // `received`: the leaves of the next part. The last part of a server has no next part, so that
  // any gradients will do.
  static Roots rootsOf(const TensorList& outputs, const TensorList& received) {
    Roots roots;
    for (std::size_t t = 0; t < outputs.size(); ++t) {
      if (!outputs[t].requires_grad() || !received[t].requires_grad()) continue;
      roots.outputs.push_back(outputs[t]);
      roots.gradients.push_back(received[t].grad().defined() ? received[t].grad()
                                                             : at::ones_like(received[t]));
    }
    return roots;
  }

  // Learning rate 0 leaves the weights finite, whatever the gradients.
  void update() {
    StepDecision decision;
    decision.step = ++step_;
    decision.learningRates.assign(plan_.stage.optimizer.groups.size() + 1, 0);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      update_[p].push_back(timed(device_, [&] { parts_[p]->update(decision); }));
    }
  }

  const RunPlan& plan_;
  ComputeDevice& device_;
  const ProfilerOptions& options_;
  std::optional<LabeledBatch> batch_;  // empty on servers
  std::vector<std::unique_ptr<TrainedPart>> parts_;
  std::vector<std::vector<double>> update_;  // by part: seconds of each step
  std::uint64_t step_ = 0;
};

// A tensor of about 1 MiB with the shape of the plan's first activation.
TensorSpec codecTensor(const RunPlan& plan) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const Flow flow = activationAt(plan.place.firstCut);
  const std::size_t perSample = flowSpec(plan.blocks, plan.stage.cuts, flow, 1).bytes();
  const std::size_t samples = std::max<std::size_t>(1, kBytes / perSample);
  return flowSpec(plan.blocks, plan.stage.cuts, flow, static_cast<std::uint32_t>(samples));
}

}  // namespace

double outputBytes(const BlockSpec& block) {
  double bytes = 0;
  for (const BlockOutput& output : block.outputs) {
    bytes += static_cast<double>(specOfOutput(output, 1).bytes());
  }
  return bytes;
}

std::vector<std::uint32_t> profiledMicroBatches(const std::vector<BlockSpec>& blocks,
                                                std::uint32_t batch) {
  constexpr std::uint32_t kMax = 64;
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 1; number <= std::min(batch, kMax); number *= 2) {
    if (!fitsBatchNorm(blocks, Division::of(batch, number).smallest())) break;
    numbers.push_back(number);
  }
  return numbers;
}

Profile measureProfile(const RunPlan& plan, ComputeDevice& device, const ProfilerOptions& options) {
  Profile profile;
  profile.device = device.description();
  profile.batch = options.batch;
  Blocks blocks(plan, device, options);
  for (const std::uint32_t number : profiledMicroBatches(plan.blocks, options.batch)) {
    profile.sizes.insert(profile.sizes.begin(), blocks.measure(number));
  }
  for (int b = options.first; b < options.last; ++b) {
    const BlockSpec& block = plan.blocks[static_cast<std::size_t>(b)];
    const auto parameters = static_cast<double>(parameterCount(plan.blocks, b, b + 1));
    profile.blocks.push_back({block.name, outputBytes(block), parameters * sizeof(float),
                              static_cast<double>(block.savedPerSample) * sizeof(float),
                              blocks.updateSeconds(profile.blocks.size())});
  }
  const TensorSpec tensor = codecTensor(plan);
  for (const std::string& spec : options.codecs) {
    profile.codecs[spec] = measureCodec(*makeCodec(spec), tensor);
  }
  return profile;
}

RunPlan planOfProfile(const Profile& client) try {
  RunPlan plan = planRun(runSpecFromJson(client.runSpec));
  if (client.graphs.empty()) return plan;
  // The run spec has the first graph, and its learned inserts.
  std::vector<BlockSpec> blocks = {plan.blocks[0], plan.blocks[1]};
  blocks[1].name = client.blocks[1].name;
  for (std::size_t b = 2; b <= client.graphs.size(); ++b) {
    blocks.push_back(
        blockOfGraph(client.blocks[b].name, unpackGraph(bytesOfHex(client.graphs[b - 1]))));
  }
  plan.stage.cuts.cut1 = static_cast<int>(blocks.size());
  blocks.push_back(plan.blocks.back());
  plan.blocks = std::move(blocks);
  return plan;
} catch (const Error& error) {
  throw UsageError("bad-profile", std::string("the profile's run spec: ") + error.what(),
                   "make it again with cleave-client profile");
}

CodecProfile measureCodec(const Codec& codec, const TensorSpec& tensor) {
  if (codec.isIdentity()) return {};
  constexpr int kRepeats = 3;
  std::vector<float> values(tensor.elements());
  fillNormal(randomKey(1, "profile"), values);
  std::vector<std::byte> payload(codec.maxEncodedBytes(tensor));
  const CodecContext context{1, {Phase::train, 1, 0, activationAt(0)}};
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  CodecProfile min{1e9, 1e9};
  for (int repeat = 0; repeat < kRepeats; ++repeat) {  // the first repetition touches the memory
    CutContext sent, received;
    const SteadyTime start = now();
    const std::size_t bytes = codec.encode(context, nullptr, sent, {data, tensor}, payload).bytes;
    const SteadyTime encoded = now();
    codec.decode(context, nullptr, received, std::span(payload).first(bytes), {data, tensor});
    min.encodeSeconds = std::min(min.encodeSeconds, secondsBetween(start, encoded));
    min.decodeSeconds = std::min(min.decodeSeconds, secondsSince(encoded));
  }
  const auto bytes = static_cast<double>(tensor.bytes());
  return {min.encodeSeconds / bytes, min.decodeSeconds / bytes};
}

}  // namespace cleave
