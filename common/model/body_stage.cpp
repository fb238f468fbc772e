#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "common/model/stage.h"
#include "common/model/stage_parts.h"

namespace cleave {
namespace {

// Kept from a micro-batch's forward until its backward.
struct Saved {
  at::Tensor input;   // a leaf of autograd's graph
  at::Tensor output;  // with the graph that starts at the leaf
};

}  // namespace

struct BodyStage::State {
  State(const StageOptions& stageOptions, const StageWait& stageWait, ComputeDevice& on)
      : options(stageOptions),
        wait(stageWait),
        device(on),
        blocks(checkedBlocks(options)),
        part(options, blocks, options.cuts.cut0, options.cuts.cut1, device.device()) {
    checkBodyWait(wait);
  }

  TensorSpec spec(Flow flow, const MicroBatch& at) const {
    return flowSpec(blocks, options.cuts, flow, sizeOf(at));
  }
  Payload waitInstead(double milliseconds, Flow flow, const MicroBatch& at) {
    return placeholders.wait(milliseconds, flow, at, spec(flow, at));
  }

  Payload leaving(Flow flow, const at::Tensor& tensor) const {
    return leavingPayload(tensor, device, options.staysOnDevice.get(flow));
  }

  StageOptions options;
  StageWait wait;
  ComputeDevice& device;
  std::vector<BlockSpec> blocks;
  TrainedPart part;
  std::map<std::uint32_t, Saved> saved;  // by micro-batch
  Placeholders placeholders;
};

void checkBodyWait(const StageWait& wait) {
  if (!wait.f2 || wait.b2) return;
  throw UsageError("bad-wait",
                   "wait.F2 is set without wait.B2: a forward pass that only waits leaves nothing "
                   "for the backward pass",
                   "set wait.B2 too");
}

BodyStage::BodyStage(const StageOptions& options, const StageWait& wait, ComputeDevice& device)
    : state_(std::make_unique<State>(options, wait, device)) {}
BodyStage::~BodyStage() = default;

Payload BodyStage::forward(const MicroBatch& at, Payload activation0) {
  if (state_->wait.f2) {
    return state_->waitInstead(*state_->wait.f2, activationAt(1), at);
  }
  const at::Tensor input =
      enteringTensor(std::move(activation0), state_->spec(activationAt(0), at), state_->device);
  if (at.phase != Phase::train) {
    const at::NoGradGuard noGrad;
    return state_->leaving(activationAt(1), state_->part.forward(input, at));
  }
  input.set_requires_grad(true);
  const at::Tensor output = state_->part.forward(input, at);
  if (!state_->saved.emplace(at.i, Saved{input, output}).second) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " went forward twice");
  }
  return state_->leaving(activationAt(1), output);
}

Payload BodyStage::backward(const MicroBatch& at, Payload gradient1) {
  if (state_->wait.b2) {
    state_->saved.erase(at.i);
    return state_->waitInstead(*state_->wait.b2, gradientAt(0), at);
  }
  const auto node = state_->saved.extract(at.i);
  if (node.empty()) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " goes backward, not forward");
  }
  const Saved& saved = node.mapped();
  saved.output.backward(
      enteringTensor(std::move(gradient1), state_->spec(gradientAt(1), at), state_->device));
  return state_->leaving(gradientAt(0), saved.input.grad());
}

GradientReport BodyStage::report() const { return state_->part.gradientReport(); }

void BodyStage::update(const StepDecision& decision) { state_->part.update(decision); }

std::vector<std::byte> BodyStage::exportWeights() const {
  return toSafetensors(weightsOf(state_->part.set()));
}

std::vector<std::byte> BodyStage::exportGradients() const {
  return toSafetensors(gradientsOf(state_->part.set()));
}

void BodyStage::importWeights(std::span<const std::byte> file) {
  loadWeights(state_->part.set(), fromSafetensors(file, "weights/body"));
}

std::vector<NamedTensor> BodyStage::save() const { return state_->part.save(); }

void BodyStage::restore(const std::vector<NamedTensor>& saved) {
  std::vector<NamedTensor> rest = saved;
  state_->part.restore(rest);
  checkAllTaken(rest);
}

}  // namespace cleave
