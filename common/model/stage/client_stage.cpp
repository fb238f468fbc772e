#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/model/stage/deterministic_scope.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/stage/stage.h"
#include "common/model/stage/stage_cut.h"
#include "common/model/stage/trained_part.h"
#include "common/model/torch_tensor.h"

namespace cleave {

struct ClientStage::State {
  State(const StageOptions& stageOptions, ComputeDevice& on)
      : options(stageOptions),
        device(on),
        blocks(blocksFor(options)),
        head(options, blocks, 0, options.cuts.cut0, device.device()),
        tail(options, blocks, options.cuts.cut1, static_cast<int>(blocks.size()), device.device(),
             {}, &head),
        tailTakesInputs(
            std::any_of(blocks.begin() + options.cuts.cut1, blocks.end(),
                        [](const BlockSpec& block) { return !block.batchInputs.empty(); })),
        first(options, blocks, options.cuts.number0, device),
        last(options, blocks, options.cuts.number1, device) {
    for (std::uint32_t b = 0; b <= options.staleness; ++b) {
      batches.emplace_back(options.scores, blocks.back().outputShape(), device);
    }
  }

  StageOptions options;
  ComputeDevice& device;
  std::vector<BlockSpec> blocks;
  TrainedPart head;
  TrainedPart tail;
  const bool tailTakesInputs;
  StageCut first, last;
  std::deque<LabeledBatch> batches;  // of the latest steps
  // The head's outputs by step and micro-batch, with their autograd graphs; empty lists with
  // `recompute`.
  using Which = std::pair<std::uint64_t, std::uint32_t>;
  std::map<Which, TensorList> headOutputs;
  double lossScale = 1;
  std::function<void(int cut, const MicroBatch& at, const TensorList& tensors)> observer;

  void observe(int cut, const MicroBatch& at, const TensorList& tensors) const {
    if (!observer || at.phase != Phase::train) return;
    TensorList crossing;
    for (const at::Tensor& each : tensors) {
      crossing.push_back(canonical(each.detach(), cutOrder(static_cast<std::size_t>(each.dim()))));
    }
    observer(cut, at, crossing);
  }

  LabeledBatch& batch(std::uint64_t step) { return batches[step % batches.size()]; }
};

ClientStage::ClientStage(const StageOptions& options, ComputeDevice& device)
    : state_(std::make_unique<State>(options, device)) {}
ClientStage::~ClientStage() = default;

void ClientStage::beginBatch(const BatchView& batch, std::uint64_t step) {
  state_->batch(step).begin(batch);
}

TensorBundle ClientStage::headForward(const MicroBatch& at) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  const TensorList inputs = state_->batch(at.step).inputs(at);
  if (at.phase != Phase::train || !state_->first.hasGradients()) {
    const at::NoGradGuard noGrad;
    const TensorList outputs = state_->head.forward({}, inputs, at);
    state_->observe(state_->options.cuts.number0, at, outputs);
    return state_->first.leave(at, outputs);
  }
  TensorList outputs = state_->head.forward({}, inputs, at);
  state_->observe(state_->options.cuts.number0, at, outputs);
  TensorBundle leaving = state_->first.leave(at, outputs);
  if (state_->options.recompute) outputs.clear();
  if (!state_->headOutputs.emplace(State::Which(at.step, at.i), std::move(outputs)).second) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " went forward twice");
  }
  return leaving;
}

TensorBundle ClientStage::tailStep(const MicroBatch& at, TensorBundle activations1) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  const bool training = at.phase == Phase::train;
  LabeledBatch& batch = state_->batch(at.step);
  const at::AutoGradMode recordGraph(training);
  const TensorList leaves = state_->last.enter(at, std::move(activations1), training);
  state_->observe(state_->options.cuts.number1, at, leaves);
  const TensorList inputs = state_->tailTakesInputs ? batch.inputs(at) : TensorList();
  const TensorList outputs = state_->tail.forward(leaves, inputs, at);
  const at::Tensor loss = batch.loss(outputs.front(), at);
  // If the loss is scaled, a step that overflows is skipped.
  if (!training || state_->lossScale == 1) batch.checkLoss(at, leaves);
  if (!training) return {};
  if (loss.requires_grad()) {  // nothing is trained if only the cuts are observed
    (state_->lossScale == 1 ? loss : loss.mul(state_->lossScale)).backward();
  }
  return state_->last.leaveGradients(at, leaves);
}

void ClientStage::headBackward(const MicroBatch& at, TensorBundle gradients0) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  auto node = state_->headOutputs.extract({at.step, at.i});
  if (node.empty()) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " goes backward, not forward");
  }
  const TensorList outputs = state_->options.recompute
                                 ? state_->head.recompute({}, state_->batch(at.step).inputs(at), at)
                                 : std::move(node.mapped());
  state_->first.backward(at, outputs, std::move(gradients0));
}

void ClientStage::setLossScale(double scale) { state_->lossScale = scale; }

GradientReport ClientStage::headReport() {
  state_->tail.collectGradients();  // adds gradients of parameters tied to the head's
  GradientReport report = state_->head.gradientReport();
  report.peakMemory = state_->device.peakMemory();
  report.bases = state_->head.nextBases();
  return report;
}
GradientReport ClientStage::tailReport() { return state_->tail.gradientReport(); }

std::size_t ClientStage::shareSize() const {
  return state_->head.shareSize() + state_->tail.shareSize();
}

void ClientStage::writeShare(std::uint64_t step, std::span<float> share) {
  state_->tail.collectGradients();
  state_->head.collectGradients();
  const std::size_t ofHead = state_->head.shareSize();
  state_->head.writeShare(step, share.first(ofHead));
  state_->tail.writeShare(step, share.subspan(ofHead));
}

void ClientStage::readSum(std::uint64_t step, std::span<const float> sum) {
  const std::size_t ofHead = state_->head.shareSize();
  state_->head.readSum(step, sum.first(ofHead));
  state_->tail.readSum(step, sum.subspan(ofHead));
}

void ClientStage::setMetrics(std::uint64_t step, BatchMetrics metrics) {
  state_->batch(step).setMetrics(std::move(metrics));
}

void ClientStage::update(const StepDecision& decision) {
  state_->tail.collectGradients();
  state_->head.update(decision);
  state_->tail.update(decision);
}

const BatchMetrics& ClientStage::metrics(std::uint64_t step) const {
  return state_->batch(step).metrics();
}
const BatchMetrics& ClientStage::ownMetrics(std::uint64_t step) const {
  return state_->batch(step).ownMetrics();
}
const std::vector<float>& ClientStage::losses(std::uint64_t step) const {
  return state_->batch(step).losses();
}
void ClientStage::keepOutputs() {
  for (LabeledBatch& batch : state_->batches) batch.keepOutputs();
}
at::Tensor ClientStage::outputs(std::uint64_t step) const { return state_->batch(step).outputs(); }
void ClientStage::observeCuts(
    std::function<void(int cut, const MicroBatch& at, const TensorList& tensors)> function) {
  state_->observer = std::move(function);
}
const ParameterSet& ClientStage::head() const { return state_->head.set(); }
const ParameterSet& ClientStage::tail() const { return state_->tail.set(); }
const ParameterSet& ClientStage::evaluatedHead() const { return state_->head.evaluatedSet(); }
const ParameterSet& ClientStage::evaluatedTail() const { return state_->tail.evaluatedSet(); }

void ClientStage::importWeights(const std::vector<NamedTensor>& model) {
  const auto& blocks = state_->blocks;
  const Cuts& cuts = state_->options.cuts;
  state_->head.load(selectWeights(model, blocks, 0, cuts.cut0));
  std::vector<NamedTensor> ofTail =
      selectWeights(model, blocks, cuts.cut1, static_cast<int>(blocks.size()));
  std::erase_if(ofTail, [&](const NamedTensor& each) { return head().has(each.name); });
  state_->tail.load(ofTail);
}

// If both parts use a buffer, it is saved once.
std::vector<NamedTensor> ClientStage::save() const {
  std::vector<NamedTensor> saved = state_->head.save();
  std::set<std::string> names;
  for (const NamedTensor& each : saved) names.insert(each.name);
  for (NamedTensor& each : state_->tail.save()) {
    if (!names.contains(each.name)) saved.push_back(std::move(each));
  }
  return saved;
}

void ClientStage::restore(const std::vector<NamedTensor>& saved) {
  std::vector<NamedTensor> notOfHead = saved, rest = saved;
  state_->head.restore(notOfHead);
  state_->tail.restore(rest);
  std::set<std::string> names;
  for (const NamedTensor& each : notOfHead) names.insert(each.name);
  std::erase_if(rest, [&](const NamedTensor& each) { return !names.contains(each.name); });
  checkAllTaken(rest);
}

}  // namespace cleave
