#include <ATen/core/grad_mode.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/model/stage.h"
#include "common/model/stage_parts.h"

namespace cleave {

struct ClientStage::State {
  State(const StageOptions& stageOptions, const StageWait& stageWait, ComputeDevice& on)
      : options(stageOptions),
        wait(stageWait),
        device(on),
        blocks(checkedBlocks(options)),
        head(options, blocks, 0, options.cuts.cut0, device.device()),
        tail(options, blocks, options.cuts.cut1, static_cast<int>(blocks.size()), device.device()),
        batch(options.model, device) {
    if (wait.f1 && !wait.b1) {
      throw UsageError("bad-wait",
                       "wait.F1 is set without wait.B1: a forward pass that only waits leaves "
                       "nothing for the backward pass",
                       "set wait.B1 too");
    }
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
  TrainedPart head;
  TrainedPart tail;
  LabeledBatch batch;
  std::map<std::uint32_t, at::Tensor> headOutputs;  // by micro-batch, with their autograd graphs
  Placeholders placeholders;
};

ClientStage::ClientStage(const StageOptions& options, const StageWait& wait, ComputeDevice& device)
    : state_(std::make_unique<State>(options, wait, device)) {}
ClientStage::~ClientStage() = default;

void ClientStage::beginBatch(TensorView inputs, std::span<const std::int64_t> labels) {
  state_->batch.begin(std::move(inputs), labels);
}

Payload ClientStage::headForward(const MicroBatch& at) {
  if (state_->wait.f1) {
    return state_->waitInstead(*state_->wait.f1, activationAt(0), at);
  }
  const at::Tensor input = state_->batch.inputs(at);
  if (at.phase != Phase::train) {
    const at::NoGradGuard noGrad;
    return state_->leaving(activationAt(0), state_->head.forward(input, at));
  }
  const at::Tensor output = state_->head.forward(input, at);
  if (!state_->headOutputs.emplace(at.i, output).second) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " went forward twice");
  }
  return state_->leaving(activationAt(0), output);
}

Payload ClientStage::tailStep(const MicroBatch& at, Payload activation1) {
  const bool training = at.phase == Phase::train;
  if (state_->wait.t3) {
    state_->batch.countOnly(at);
    if (training) {
      return state_->waitInstead(*state_->wait.t3, gradientAt(1), at);
    }
    waitFor(*state_->wait.t3);
    return {};
  }
  const at::Tensor input =
      enteringTensor(std::move(activation1), state_->spec(activationAt(1), at), state_->device);
  if (!training) {
    const at::NoGradGuard noGrad;
    state_->batch.loss(state_->tail.forward(input, at), at);
    state_->batch.checkLoss(at, input);
    return {};
  }
  input.set_requires_grad(true);
  const at::Tensor loss = state_->batch.loss(state_->tail.forward(input, at), at);
  state_->batch.checkLoss(at, input);
  loss.backward();
  return state_->leaving(gradientAt(1), input.grad());
}

void ClientStage::headBackward(const MicroBatch& at, Payload gradient0) {
  const auto node = state_->headOutputs.extract(at.i);
  if (state_->wait.b1) {
    waitFor(*state_->wait.b1);
    return;
  }
  if (node.empty()) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " goes backward, not forward");
  }
  const at::Tensor received =
      enteringTensor(std::move(gradient0), state_->spec(gradientAt(0), at), state_->device);
  // A head without parameters, such as a flatten, has no gradients.
  if (node.mapped().requires_grad()) node.mapped().backward(received);
}

GradientReport ClientStage::headReport() const { return state_->head.gradientReport(); }
GradientReport ClientStage::tailReport() const { return state_->tail.gradientReport(); }

void ClientStage::update(const StepDecision& decision) {
  state_->head.update(decision);
  state_->tail.update(decision);
}

const BatchMetrics& ClientStage::metrics() const { return state_->batch.metrics(); }
const std::vector<float>& ClientStage::losses() const { return state_->batch.losses(); }
const ParameterSet& ClientStage::head() const { return state_->head.set(); }
const ParameterSet& ClientStage::tail() const { return state_->tail.set(); }

void ClientStage::importWeights(const std::vector<NamedTensor>& model) {
  const auto& blocks = state_->blocks;
  const auto [cut0, cut1] = state_->options.cuts;
  loadWeights(head(), selectWeights(model, blocks, 0, cut0));
  loadWeights(tail(), selectWeights(model, blocks, cut1, static_cast<int>(blocks.size())));
}

std::vector<NamedTensor> ClientStage::save() const {
  std::vector<NamedTensor> saved = state_->head.save();
  for (NamedTensor& each : state_->tail.save()) {
    saved.push_back(std::move(each));
  }
  return saved;
}

void ClientStage::restore(const std::vector<NamedTensor>& saved) {
  std::vector<NamedTensor> rest = saved;
  state_->head.restore(rest);
  state_->tail.restore(rest);
  checkAllTaken(rest);
}

}  // namespace cleave
