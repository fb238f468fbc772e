#include <ATen/core/grad_mode.h>

#include <optional>

#include "common/model/stage/deterministic_scope.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/stage/owner_gradients.h"
#include "common/model/stage/stage.h"
#include "common/model/stage/trained_part.h"

namespace cleave {

struct WholeStage::State {
  State(const StageOptions& stageOptions, ComputeDevice& on)
      : State(stageOptions, blocksFor(stageOptions), on) {}
  State(const StageOptions& stageOptions, const std::vector<BlockSpec>& modelBlocks,
        ComputeDevice& on)
      : options(stageOptions),
        device(on),
        blocks(modelBlocks),
        part(options, blocks, 0, static_cast<int>(blocks.size()), device.device(),
             options.allCuts()),
        batch(options.scores, blocks.back().outputShape(), device) {}

  StageOptions options;
  ComputeDevice& device;
  std::vector<BlockSpec> blocks;
  TrainedPart part;
  LabeledBatch batch;
  double lossScale = 1;
};

WholeStage::WholeStage(const StageOptions& options, ComputeDevice& device)
    : state_(std::make_unique<State>(options, device)) {}
WholeStage::~WholeStage() = default;

void WholeStage::runBatch(Phase phase, std::uint64_t step, const Division& division,
                          const BatchView& given) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  DeviceQueue* const queue = state_->device.queue();
  if (queue != nullptr) queue->begin();
  LabeledBatch& batch = state_->batch;
  batch.begin(given);
  const bool training = phase == Phase::train;
  const at::AutoGradMode recordGraph(training);
  MicroBatch at{phase, step, 0, division};
  std::optional<OwnerGradients> owners;
  if (training && (!state_->options.bodyReplicas.empty() || !division.members.empty())) {
    owners.emplace(OwnerGradients::ofModel(state_->options, state_->blocks,
                                           state_->part.leavesFor(at), division));
  }
  for (; at.i < at.batch.count; ++at.i) {
    const TensorList outputs = state_->part.forward({}, batch.inputs(at), at);
    const at::Tensor loss = batch.loss(outputs.front(), at);
    if (!training) continue;
    if (owners) owners->begin(at.i);
    (state_->lossScale == 1 ? loss : loss.mul(state_->lossScale)).backward();
    if (owners) owners->end(at.i);
  }
  if (owners) owners->sum();
  if (queue != nullptr) {
    queue->end([] {});
    queue->drain();
  }
}

void WholeStage::setLossScale(double scale) { state_->lossScale = scale; }

GradientReport WholeStage::report() {
  GradientReport report = state_->part.gradientReport();
  report.bases = state_->part.nextBases();
  return report;
}
void WholeStage::update(const StepDecision& decision) { state_->part.update(decision); }

const BatchMetrics& WholeStage::metrics() const { return state_->batch.metrics(); }
const std::vector<float>& WholeStage::losses() const { return state_->batch.losses(); }
void WholeStage::keepOutputs() { state_->batch.keepOutputs(); }
at::Tensor WholeStage::outputs() const { return state_->batch.outputs(); }
const ParameterSet& WholeStage::set() const { return state_->part.set(); }

const ParameterSet& WholeStage::evaluatedSet() const { return state_->part.evaluatedSet(); }

void WholeStage::importWeights(const std::vector<NamedTensor>& model) { state_->part.load(model); }

}  // namespace cleave
