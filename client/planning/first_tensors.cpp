#include "client/planning/first_tensors.h"

#include <algorithm>
#include <cstring>

#include "client/train/train_run.h"
#include "common/device/torch_errors.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxValues = std::size_t{1} << 20;
constexpr std::int64_t kMaxParameters = std::int64_t{1} << 27;

// The tensor's spec with fewer samples, which are at the beginning of its memory.
TensorSpec firstSamples(TensorSpec spec) {
  if (spec.shape.empty() || spec.elements() <= kMaxValues) return spec;
  const std::int64_t samples = spec.shape.front();
  const std::size_t perSample = spec.elements() / static_cast<std::size_t>(samples);
  const auto fit = static_cast<std::int64_t>(kMaxValues / perSample);
  spec.shape.front() = std::clamp<std::int64_t>(fit, 1, samples);
  return spec;
}

void keep(const std::vector<Flow>& flows, const TensorBundle& bundle, SampleTensors& tensors) {
  for (std::size_t j = 0; j < bundle.size(); ++j) {
    const TensorView& view = bundle[j].view();
    if (view.spec.dtype != DType::f32) continue;
    SampleTensor& kept = tensors[flows.at(j)];
    kept.spec = firstSamples(view.spec);
    kept.values.resize(kept.spec.elements());
    std::memcpy(kept.values.data(), view.data, kept.spec.bytes());
  }
}

}  // namespace

SampleTensors firstTensors(const PreparedRun& run, const RunPlan& plan,
                           const std::vector<NamedTensor>& weights, const Batch& batch) {
  const int first = plan.stage.cuts.cut0, last = plan.stage.cuts.cut1;
  if (parameterCount(plan.blocks, first, last) > kMaxParameters) return {};
  const Place& place = plan.place;
  const MicroBatch at{Phase::train, 1, 0, plan.divide(batch.samples())};
  SampleTensors tensors;
  setComputeThreads(run.threads);
  withTorchErrors([&] {
    ClientStage client(plan.stage);
    BodyStage body(plan.stage);
    client.importWeights(weights);
    body.importWeights(toSafetensors(selectWeights(weights, plan.blocks, first, last)));
    client.beginBatch(viewOf(batch));
    TensorBundle bundle = client.headForward(at);
    keep(activationsOf(place.firstCut, place.first), bundle, tensors);
    bundle = body.forward(at, std::move(bundle));
    keep(activationsOf(place.lastCut, place.last), bundle, tensors);
    bundle = client.tailStep(at, std::move(bundle));
    keep(gradientsOf(place.lastCut, place.last), bundle, tensors);
    bundle = body.backward(at, std::move(bundle));
    keep(gradientsOf(place.firstCut, place.first), bundle, tensors);
  });
  return tensors;
}

}  // namespace cleave
