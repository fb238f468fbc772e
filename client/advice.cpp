#include "client/advice.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/pipeline/simulator.h"
#include "common/pipeline/tensor_link.h"
#include "compression/registry.h"

namespace cleave {
namespace {

constexpr double kWorthSaying = 0.05;  // of a step

struct Change {
  std::string sentence;  // "block:bits=4 on all flows"
  double seconds = 0;    // of a step, then
};

double simulated(const StepCosts& costs, const Schedule& schedule, std::uint32_t inFlight) {
  return simulateStep(costs, policyOf(schedule, inFlight)).seconds;
}

// The costs with another codec on every flow that it makes smaller. Both sides are taken to encode
// as fast as this one.
StepCosts withCodec(StepCosts costs, const TensorLinkOptions& options, std::uint32_t samples,
                    const std::string& spec) {
  const std::unique_ptr<Codec> codec = makeCodec(spec);
  for (std::size_t f = 0; f < kTensorFlows; ++f) {
    const auto flow = static_cast<Flow>(f);
    const TensorSpec tensor = options.spec(flow, samples);
    const std::size_t bytes = codec->maxEncodedBytes(tensor);
    if (static_cast<double>(bytes) >= costs.bytes[f] || tensor.dtype != DType::f32) continue;
    std::vector<float> values(tensor.elements());
    fillNormal(randomKey(1, "advice"), values);
    std::vector<std::byte> payload(bytes);
    const CodecContext context{1, {Phase::train, 1, 0, flow}};
    const TensorView view{reinterpret_cast<const std::byte*>(values.data()), tensor};
    CutContext cut;
    codec->encode(context, nullptr, cut, view, payload);  // touches the memory
    const SteadyTime start = now();
    codec->encode(context, nullptr, cut, view, payload);
    const SteadyTime encoded = now();
    codec->decode(context, nullptr, cut, payload,
                  {reinterpret_cast<std::byte*>(values.data()), tensor});
    costs.encodeSeconds[f] = secondsBetween(start, encoded);
    costs.decodeSeconds[f] = secondsSince(encoded);
    costs.bytes[f] = static_cast<double>(bytes);
  }
  return costs;
}

// What the user can change in the configuration.
std::vector<Change> settings(const StepCosts& costs, const RunPlan& plan, std::uint32_t batch) {
  std::vector<Change> changes;
  const TensorLinkOptions options = linkOptions(plan, Role::client);
  const std::uint32_t samples = microBatchSize(batch, costs.microBatches, 0);
  for (const std::string spec : {"block:bits=8", "block:bits=4"}) {
    changes.push_back({spec + " on all flows", simulated(withCodec(costs, options, samples, spec),
                                                         *plan.schedule, plan.inFlight)});
  }
  const Schedule& priority = findSchedule("priority");
  changes.push_back({"schedule.name: priority with all micro-batches in flight",
                     simulated(costs, priority, plan.microBatches)});
  if (2 * plan.microBatches <= batch) {
    const std::uint32_t inFlight =
        plan.inFlight == plan.microBatches ? 2 * plan.inFlight : plan.inFlight;
    changes.push_back(
        {fmt::format("{} micro-batches", 2 * plan.microBatches),
         simulated(costs.inMicroBatches(2 * costs.microBatches), *plan.schedule, inFlight)});
  }
  return changes;
}

// What would have to be bought.
Change resource(Bottleneck bottleneck, StepCosts costs, const RunPlan& plan) {
  std::string sentence;
  const auto halve = [&](std::initializer_list<ActionKind> kinds) {
    for (const ActionKind kind : kinds) costs.seconds[indexOf(kind)] /= 2;
  };
  switch (bottleneck) {
    case Bottleneck::clientCompute:
      sentence = "a client twice as fast, or a smaller head and tail,";
      halve({ActionKind::headForward, ActionKind::tailStep, ActionKind::headBackward});
      costs.updateSeconds /= 2;
      break;
    case Bottleneck::serverCompute:
      sentence = "a server twice as fast";
      halve({ActionKind::bodyForward, ActionKind::bodyBackward});
      break;
    case Bottleneck::uplink:
      sentence = "an uplink twice as fast";
      costs.rateUp *= 2;
      break;
    case Bottleneck::downlink:
      sentence = "a downlink twice as fast";
      costs.rateDown *= 2;
      break;
    case Bottleneck::latency:
      sentence = "half the latency, or a larger batch,";
      costs.latency /= 2;
      break;
    case Bottleneck::codec:
      sentence = "a codec twice as fast";
      for (double& seconds : costs.encodeSeconds) seconds /= 2;
      for (double& seconds : costs.decodeSeconds) seconds /= 2;
      break;
  }
  return {sentence, simulated(costs, *plan.schedule, plan.inFlight)};
}

}  // namespace

std::string whatWouldHelp(const StepCosts& costs, Bottleneck bottleneck, const RunPlan& plan,
                          std::uint32_t batch) {
  const std::string_view bound = bottleneckName(bottleneck);
  const double today = simulated(costs, *plan.schedule, plan.inFlight);
  const auto saves = [&](const Change& change) { return 1 - change.seconds / today; };
  const std::vector<Change> changes = settings(costs, plan, batch);
  const Change& best =
      *std::min_element(changes.begin(), changes.end(),
                        [](const Change& a, const Change& b) { return a.seconds < b.seconds; });
  if (saves(best) >= kWorthSaying) {
    return fmt::format("{}: {} would save {:.0f} % of a step", bound, best.sentence,
                       100 * saves(best));
  }
  const Change bought = resource(bottleneck, costs, plan);
  return fmt::format("{}: no setting would save {:.0f} %; {} would save {:.0f} % of a step", bound,
                     100 * kWorthSaying, bought.sentence, 100 * saves(bought));
}

}  // namespace cleave
