#include "client/train/train_run.h"

#include <utility>

#include "common/run/action_tables.h"
#include "common/run/torch_errors.h"

namespace cleave {

TensorView viewOf(const Batch& batch, const Dataset& data) {
  TensorSpec spec{
      DType::f32, {static_cast<std::int64_t>(batch.samples())}, MemoryOrder::contiguous};
  for (const std::int64_t dim : data.sampleShape()) spec.shape.push_back(dim);
  return {batch.inputs.data(), spec};
}

ActionSeconds actionsOfBothSides(const Coordinator& engine) {
  ActionSeconds actions = engine.seconds();
  actions[indexOf(ActionKind::bodyForward)] = engine.bodyDone()->forwardSeconds;
  actions[indexOf(ActionKind::bodyBackward)] = engine.bodyDone()->backwardSeconds;
  return actions;
}

TrainRun::TrainRun(PreparedRun& prepared)
    : prepared_(prepared),
      stage_(withTorchErrors([&] {
        setComputeThreads(prepared.threads);
        return ClientStage(prepared.plan.stage, prepared.settings.wait, *prepared.device);
      })),
      session_(*prepared.device) {}

const wire::HelloOk& TrainRun::connect() {
  try {
    // A server that was started for this run is gone if its connection breaks.
    const double again = prepared_.localServer ? 0 : prepared_.settings.reconnectSeconds;
    answer_ =
        session_.connect(prepared_.server, prepared_.hello, prepared_.settings.retrySeconds, again);
    checkAnswer(answer_, prepared_.plan);
  } catch (...) {
    removeUnbegun(prepared_);
    throw;
  }
  return answer_;
}

void TrainRun::start(std::function<StepDecision(const BodyDone&)> decide, const Options& options) {
  files_ = std::make_shared<RunFiles>(recorder_, prepared_.folder,
                                      RunIdentity{prepared_.hello.run_id(), answer_.session()},
                                      metricNames(), options.rotateBytes);
  files_->observe(options.metrics);
  session_.start(prepared_.plan, options.errorEvery,
                 clientActions(stage_, prepared_.threads, std::move(decide)),
                 options.fetchGradients, files_);
}

void TrainRun::loadWeights() {
  if (!prepared_.plan.spec.initialWeights) return;
  stage_.importWeights(prepared_.weights);
  const auto [cut0, cut1] = prepared_.plan.stage.cuts;
  session_.sendWeights(std::make_shared<const std::vector<std::byte>>(
      toSafetensors(selectWeights(prepared_.weights, prepared_.plan.blocks, cut0, cut1))));
  prepared_.weights.clear();
}

MicroBatch TrainRun::runBatch(Phase phase, std::uint64_t step, const Batch& batch) {
  stage_.beginBatch(viewOf(batch, *prepared_.data.train), batch.labels);
  const MicroBatch at{phase, step, 0,
                      microBatchCount(batch.samples(), prepared_.settings.microBatches),
                      batch.samples()};
  session_.runBatch(at);
  return at;
}

void TrainRun::finishRecords() {
  StepRow last;
  last.phase = "bye";
  files_->step(last, session_.totals());
  recorder_.flush();
}

}  // namespace cleave
