#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "common/model/stage.h"
#include "common/model/stage_parts.h"

namespace cleave {

struct WholeStage::State {
  explicit State(const StageOptions& stageOptions) : State(stageOptions, blocksFor(stageOptions)) {}
  State(const StageOptions& stageOptions, const std::vector<BlockSpec>& blocks)
      : options(stageOptions),
        part(options, blocks, 0, static_cast<int>(blocks.size()), at::kCPU, options.allCuts()),
        batch(options.scores, blocks.back().outputShape(), cpuDevice()) {}

  StageOptions options;
  TrainedPart part;
  LabeledBatch batch;
  double lossScale = 1;
};

WholeStage::WholeStage(const StageOptions& options) : state_(std::make_unique<State>(options)) {}
WholeStage::~WholeStage() = default;

void WholeStage::runBatch(Phase phase, std::uint64_t step, std::uint32_t microBatches,
                          const BatchView& given) {
  LabeledBatch& batch = state_->batch;
  batch.begin(given);
  const bool training = phase == Phase::train;
  const at::AutoGradMode recordGraph(training);
  MicroBatch at{phase, step, 0, microBatchCount(batch.samples(), microBatches), batch.samples()};
  for (; at.i < at.microBatches; ++at.i) {
    const TensorList outputs = state_->part.forward({}, batch.inputs(at), at);
    const at::Tensor loss = batch.loss(outputs.front(), at);
    if (training) (state_->lossScale == 1 ? loss : loss.mul(state_->lossScale)).backward();
  }
}

void WholeStage::setLossScale(double scale) { state_->lossScale = scale; }

GradientReport WholeStage::report() { return state_->part.gradientReport(); }
void WholeStage::update(const StepDecision& decision) { state_->part.update(decision); }

const BatchMetrics& WholeStage::metrics() const { return state_->batch.metrics(); }
const std::vector<float>& WholeStage::losses() const { return state_->batch.losses(); }
void WholeStage::keepOutputs() { state_->batch.keepOutputs(); }
at::Tensor WholeStage::outputs() const { return state_->batch.outputs(); }
const ParameterSet& WholeStage::set() const { return state_->part.set(); }

const ParameterSet& WholeStage::evaluatedSet() const { return state_->part.evaluatedSet(); }

void WholeStage::importWeights(const std::vector<NamedTensor>& model) { state_->part.load(model); }

}  // namespace cleave
