#include "client/train/step_prediction.h"

#include <optional>
#include <span>
#include <utility>

#include "common/predict/simulator.h"
#include "common/run/profiler.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<ActionKind, const char*> kKindKeys[] = {
    {ActionKind::headForward, "head_forward_seconds"},
    {ActionKind::tailStep, "tail_step_seconds"},
    {ActionKind::headBackward, "head_backward_seconds"},
    {ActionKind::bodyForward, "body_forward_seconds"},
    {ActionKind::bodyBackward, "body_backward_seconds"},
    {ActionKind::bodyWeights, "body_weights_seconds"},
};

// The client's and the server's seconds, without transfers.
void setComputation(StepCosts& costs, const RunPlan& plan, std::uint32_t samples,
                    const Profile& client, const Profile& server) {
  std::vector<std::string> names;
  for (const BlockSpec& block : plan.blocks) names.push_back(block.name);
  const auto cut0 = static_cast<std::size_t>(plan.stage.cuts.cut0);
  const auto cut1 = static_cast<std::size_t>(plan.stage.cuts.cut1);
  const std::span<const std::string> all(names);
  const std::span head = all.first(cut0), body = all.subspan(cut0, cut1 - cut0);
  const std::span tail = all.subspan(cut1);

  const PassSeconds ofHead = client.passSeconds(head, samples);
  const PassSeconds ofBody = server.passSeconds(body, samples);
  const PassSeconds ofTail = client.passSeconds(tail, samples);
  const double repeats = plan.stage.recompute ? 1 : 0;
  costs.headForward = ofHead.forward;
  costs.headBackward = ofHead.backward + repeats * ofHead.forward;
  costs.tailStep = ofTail.forward + ofTail.backward + client.lossSeconds(samples);
  costs.body().forward = ofBody.forward;
  costs.body().backward = ofBody.backward + repeats * ofBody.forward;
  costs.body().weights = ofBody.weights;
  costs.updateSeconds = client.updateSeconds(head) + client.updateSeconds(tail);
}

void setWaits(StepCosts& costs, const StageWait& client, const StageWait& server) {
  const auto set = [](double& seconds, const std::optional<double>& milliseconds) {
    if (milliseconds) seconds = 1e-3 * *milliseconds;
  };
  set(costs.headForward, client.f1);
  set(costs.tailStep, client.t3);
  set(costs.headBackward, client.b1);
  set(costs.body().forward, server.f2);
  if (server.b2) {
    costs.body().weights = 1e-3 * server.w2.value_or(0);
    costs.body().backward = 1e-3 * *server.b2 + costs.body().weights;
  }
}

// All tensors of a cut count as one flow.
void addFlow(StepCosts& costs, const RunPlan& plan, Flow flow, std::uint32_t samples,
             const Profile& client, const Profile& server) {
  const Codec& codec = *plan.codecs.at(flow);
  const TensorSpec tensor = flowSpec(plan.blocks, plan.stage.cuts, flow, samples);
  const bool isUp = plan.place.isUp(flow);
  const auto raw = static_cast<double>(tensor.bytes());
  FlowCosts& sum = costs.flows[{flow.kind, flow.cut}];
  sum.bytes += static_cast<double>(codec.maxEncodedBytes(tensor));
  sum.encodeSeconds += raw * (isUp ? client : server).codec(codec.spec()).encodeSeconds;
  sum.decodeSeconds += raw * (isUp ? server : client).codec(codec.spec()).decodeSeconds;
}

}  // namespace

void checkProfiles(const RunPlan& plan, const Profile& client, const Profile& server) {
  for (const BlockSpec& block : plan.blocks) {
    client.checkBlock(block.name, outputBytes(block));
    server.checkBlock(block.name, outputBytes(block));
  }
}

StepCosts profiledCosts(const RunPlan& plan, std::uint32_t batch, const StageWait& wait,
                        const Profile& client, const Profile& server) {
  StepCosts costs;
  costs.microBatches = microBatchCount(batch, plan.spec.microBatches);
  const std::uint32_t samples = microBatchSize(batch, costs.microBatches, 0);
  costs.body().place = plan.place;
  costs.body().place.first.resize(1);
  costs.body().place.last.resize(1);
  setComputation(costs, plan, samples, client, server);
  setWaits(costs, wait, plan.wait);
  setFlows(costs, plan, batch, client, server);
  return costs;
}

void setFlows(StepCosts& costs, const RunPlan& plan, std::uint32_t batch, const Profile& client,
              const Profile& server) {
  costs.flows = {};
  const std::uint32_t samples = microBatchSize(batch, costs.microBatches, 0);
  for (const Flow flow : plan.flows()) addFlow(costs, plan, flow, samples, client, server);
}

std::vector<const Schedule*> predictableSchedules(const StepCosts& costs) {
  std::vector<const Schedule*> schedules;
  for (const Schedule& schedule : scheduleTable()) {
    if (!schedule.splitsBackward || costs.body().weights > 0) schedules.push_back(&schedule);
  }
  return schedules;
}

StepPrediction predictStep(const StepCosts& costs) {
  StepPrediction prediction{stepBound(costs), {}, 0};
  for (const Schedule* schedule : predictableSchedules(costs)) {
    const Policy policy = policyOf(*schedule, schedule->defaultInFlight(costs.microBatches));
    prediction.schedules.push_back({std::string(schedule->name),
                                    simulateStep(costs, policy).seconds,
                                    stepBound(costs, schedule->splitsBackward).seconds});
  }
  prediction.bestOrder = bestStepSeconds(costs);
  return prediction;
}

Json toJson(const StepCosts& costs, std::uint32_t batch, const StepPrediction* prediction) {
  Json json = {{"batch", batch}, {"micro_batches", costs.microBatches}};
  for (const auto& [kind, key] : kKindKeys) json[key] = costs.of(kind);
  // With several bodies, the members above are those of the first one.
  for (std::size_t b = 0; costs.bodies.size() > 1 && b < costs.bodies.size(); ++b) {
    json["bodies"].push_back({{"body_forward_seconds", costs.bodies[b].forward},
                              {"body_backward_seconds", costs.bodies[b].backward},
                              {"body_weights_seconds", costs.bodies[b].weights}});
  }
  json["update_seconds"] = costs.updateSeconds;
  for (const auto& [flow, tensor] : costs.flows) {
    json["flows"][flowName(flow)] = {{"bytes", tensor.bytes},
                                     {"encode_seconds", tensor.encodeSeconds},
                                     {"decode_seconds", tensor.decodeSeconds}};
  }
  if (prediction == nullptr) return json;
  json["bound_seconds"] = prediction->bound.seconds;
  json["bottleneck"] = bottleneckName(prediction->bound.bottleneck);
  json["best_order_seconds"] = prediction->bestOrder;
  for (const StepPrediction::Of& each : prediction->schedules) {
    json["schedules"][each.schedule] = {{"seconds", each.seconds},
                                        {"bound_seconds", each.bound},
                                        {"over_bound", each.seconds / each.bound}};
  }
  return json;
}

}  // namespace cleave
