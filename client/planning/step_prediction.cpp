#include "client/planning/step_prediction.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "common/core/units.h"
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

using Names = std::vector<std::string>;

// The names of the blocks from `first` to `last` - 1.
Names namesOf(const RunPlan& plan, int first, int last) {
  Names names;
  for (int b = first; b < last; ++b) names.push_back(plan.blocks[static_cast<std::size_t>(b)].name);
  return names;
}

void setClient(StepCosts& costs, const RunPlan& plan, std::uint32_t samples,
               const Profile& client) {
  const Names head = namesOf(plan, 0, plan.stage.cuts.cut0);
  const Names tail = namesOf(plan, plan.stage.cuts.cut1, static_cast<int>(plan.blocks.size()));
  const PassSeconds ofHead = client.passSeconds(head, samples);
  const PassSeconds ofTail = client.passSeconds(tail, samples);
  const double repeats = plan.stage.recompute ? 1 : 0;
  costs.headForward = ofHead.forward;
  costs.headBackward = ofHead.backward + repeats * ofHead.forward;
  costs.tailStep = ofTail.forward + ofTail.backward + client.lossSeconds(samples);
  costs.updateSeconds = client.updateSeconds(head) + client.updateSeconds(tail);
}

BodyCosts bodyCosts(const RunPlan& plan, std::uint32_t samples, const Profile& server) {
  BodyCosts body;
  body.place = plan.place;
  body.place.first.resize(1);
  body.place.last.resize(1);
  const PassSeconds seconds =
      server.passSeconds(namesOf(plan, plan.stage.cuts.cut0, plan.stage.cuts.cut1), samples);
  body.forward = seconds.forward;
  body.backward = seconds.backward + (plan.stage.recompute ? seconds.forward : 0);
  body.weights = seconds.weights;
  return body;
}

// Adds this body's part of a flow, and the client's if the client has the other end. All tensors of
// a cut count as one flow.
void addFlow(FlowCosts& sum, const RunPlan& body, Flow flow, bool isClients, std::uint32_t samples,
             const Profile& client, const Profile& server) {
  const Codec& codec = *body.codecs.at(flow).own;
  const TensorSpec tensor = flowSpec(body.blocks, body.stage.cuts, flow, samples);
  const bool isUp = body.place.isUp(flow);
  const auto raw = static_cast<double>(tensor.bytes());
  // A tensor between two bodies counts at the body that receives it.
  if (isUp || isClients) sum.bytes += static_cast<double>(codec.expectedBytes(tensor));
  if (!isFloat(tensor.dtype)) return;  // integers are few: their codec takes no time
  if (!isUp || isClients) {
    sum.encodeSeconds += raw * (isUp ? client : server).codec(codec.spec()).encodeSeconds;
  }
  if (isUp || isClients) {
    sum.decodeSeconds += raw * (isUp ? server : client).codec(codec.spec()).decodeSeconds;
  }
}

}  // namespace

std::vector<Profile> readServerProfiles(const std::vector<std::string>& files, std::size_t bodies,
                                        bool allowsMore) {
  const bool fits =
      files.size() == 1 || files.size() == bodies || (allowsMore && files.size() > bodies);
  if (!fits) {
    throw UsageError(
        "bad-value",
        fmt::format("--server-profile names {} files, but model.cuts divides the model among {}",
                    files.size(), countText(bodies, "server")),
        "give one profile for all servers, or one per server; the replicas of a body share one");
  }
  std::vector<Profile> profiles;
  for (const std::string& file : files) profiles.push_back(readProfile(file));
  if (profiles.size() == 1) return std::vector<Profile>(bodies, profiles.front());
  return profiles;
}

void checkProfiles(const RunPlan& plan, const Profile& client, std::span<const Profile> servers) {
  for (const BlockSpec& block : plan.blocks) {
    client.checkBlock(block.name, outputBytes(block));
    for (const Profile& server : servers) server.checkBlock(block.name, outputBytes(block));
  }
}

Division divisionOfMember(const RunPlan& plan, std::uint32_t batch) {
  const std::uint32_t members = plan.spec.cohort.atOnce();
  const Division whole = plan.divide(batch);
  if (members == 1) return whole;
  const std::uint32_t samples = (batch + members - 1) / members, largest = whole.largest();
  return {(samples + largest - 1) / largest, samples};
}

void setMembers(StepCosts& costs, const RunPlan& plan, std::uint32_t batch) {
  costs.members = plan.spec.cohort.atOnce();
  costs.isByMember = plan.spec.cohort.isByMember();
  if (costs.members == 1) return;
  costs.microBatches *= costs.members;
  costs.batch = batch;
  costs.largest = plan.divide(batch).largest();
  costs.samples = divisionOfMember(plan, batch).largest();
  const int last = static_cast<int>(plan.blocks.size());
  costs.memberBytes =
      sizeof(float) * static_cast<double>(trainedCount(plan.blocks, 0, plan.stage.cuts.cut0) +
                                          trainedCount(plan.blocks, plan.stage.cuts.cut1, last));
}

ReplicaCosts replicaCosts(const RunPlan& body, std::uint32_t count, std::uint32_t microBatches) {
  if (count == 1) return {};
  StageOptions stage = body.stage;
  stage.microBatches = maxMicroBatches(microBatches, body.spec.cohort.atOnce());
  const auto values = static_cast<double>(maxShareSize(stage, body.blocks));
  return {count, values * sizeof(float), 0};
}

StepCosts profiledCosts(const RunPlan& plan, std::span<const RunPlan> bodies, std::uint32_t batch,
                        const Profile& client, std::span<const Profile> servers) {
  StepCosts costs;
  const Division division = divisionOfMember(plan, batch);
  costs.microBatches = division.count;
  setMembers(costs, plan, batch);
  const std::uint32_t samples = division.largest();
  setClient(costs, plan, samples, client);
  costs.bodies.clear();
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    costs.bodies.push_back(bodyCosts(bodies[b], samples, servers[b]));
    costs.bodies.back().replicas =
        replicaCosts(bodies[b], bodies[b].spec.replicas, plan.divide(batch).count);
  }
  if (bodies.front().hasEdges) costs.edges.resize(bodies.size() - 1);
  setFlows(costs, plan, bodies, batch, client, servers);
  return costs;
}

void setFlows(StepCosts& costs, const RunPlan& plan, std::span<const RunPlan> bodies,
              std::uint32_t batch, const Profile& client, std::span<const Profile> servers) {
  costs.flows = {};
  const std::uint32_t samples = divisionOfMember(plan, batch).largest();
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    for (const Flow flow : bodies[b].flows()) {
      const bool isClients =
          flow.cut == bodies.front().place.firstCut || flow.cut == bodies.back().place.lastCut;
      addFlow(costs.flows[{flow.kind, flow.cut}], bodies[b], flow, isClients, samples, client,
              servers[b]);
    }
  }
}

std::vector<const Schedule*> predictableSchedules(const StepCosts& costs) {
  std::vector<const Schedule*> schedules;
  const bool areMixed = costs.bodies.size() > 1 && costs.maxReplicas() > 1;  // see checkReplicas()
  for (const Schedule& schedule : scheduleTable()) {
    if (areMixed && schedule.isStrict && schedule.overlapsSteps) continue;
    if (!schedule.splitsBackward || costs.hasWeights()) schedules.push_back(&schedule);
  }
  return schedules;
}

std::uint32_t predictedInFlight(const StepCosts& costs, const Schedule& schedule,
                                std::uint32_t asked, std::uint32_t staleness) {
  const std::uint32_t microBatches = costs.microBatches * (staleness + 1);
  if (!placeOfAll(costs.places()).limitsInFlight()) return microBatches;
  if (asked == 0)
    return schedule.defaultInFlight(microBatches, static_cast<std::uint32_t>(costs.bodies.size()));
  return std::clamp(asked, schedule.minInFlight(microBatches), microBatches);
}

StepPrediction predictStep(const StepCosts& costs, std::uint32_t inFlight) {
  StepPrediction prediction{stepBound(costs), {}, 0};
  for (const Schedule* schedule : predictableSchedules(costs)) {
    const Policy policy = policyOf(*schedule, predictedInFlight(costs, *schedule, inFlight));
    prediction.schedules.push_back({std::string(schedule->name),
                                    simulateStep(costs, policy).seconds,
                                    stepBound(costs, schedule->splitsBackward).seconds});
  }
  prediction.bestOrder = bestStepSeconds(costs);
  return prediction;
}

std::optional<std::size_t> bottleneckServer(const StepCosts& costs, const StepBound& bound) {
  const bool isLink =
      bound.bottleneck == Bottleneck::uplink || bound.bottleneck == Bottleneck::downlink;
  const bool isOfServer =
      bound.bottleneck == Bottleneck::serverCompute || (isLink && !costs.sharesLink);
  return costs.bodies.size() > 1 && isOfServer ? std::optional(bound.body) : std::nullopt;
}

std::string bottleneckText(Bottleneck bottleneck, std::optional<std::size_t> server) {
  const std::string name(bottleneckName(bottleneck));
  return server ? fmt::format("{}, server {}", name, *server + 1) : name;
}

Json toJson(const StepCosts& costs, std::uint32_t batch, const StepPrediction* prediction) {
  Json json = {{"batch", batch}, {"micro_batches", costs.microBatches}};
  if (costs.members > 1) {
    json["members"] = costs.members;
    json["order"] = costs.isByMember ? kByMember : kGlobal;
    json["largest_micro_batch"] = costs.largest;
    json["micro_batch"] = costs.samples;
    json["member_bytes"] = costs.memberBytes;
  }
  for (const auto& [kind, key] : kKindKeys) json[key] = costs.of(kind);
  // With several bodies, the members above are those of the first one.
  for (std::size_t b = 0; costs.bodies.size() > 1 && b < costs.bodies.size(); ++b) {
    json["bodies"].push_back({{"body_forward_seconds", costs.bodies[b].forward},
                              {"body_backward_seconds", costs.bodies[b].backward},
                              {"body_weights_seconds", costs.bodies[b].weights}});
  }
  if (costs.maxReplicas() > 1) {
    const auto& bodies = costs.bodies;
    json["replicas"] = costs.body().replicas.count;
    json["reduce_seconds"] = costs.body().replicas.seconds;
    for (std::size_t b = 0; bodies.size() > 1 && b < bodies.size(); ++b) {
      json["bodies"][b]["replicas"] = bodies[b].replicas.count;
      json["bodies"][b]["reduce_seconds"] = bodies[b].replicas.seconds;
    }
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
  if (const auto server = bottleneckServer(costs, prediction->bound)) {
    json["bottleneck_server"] = *server + 1;
  }
  json["best_order_seconds"] = prediction->bestOrder;
  for (const StepPrediction::Of& each : prediction->schedules) {
    json["schedules"][each.schedule] = {{"seconds", each.seconds},
                                        {"bound_seconds", each.bound},
                                        {"over_bound", each.seconds / each.bound}};
  }
  return json;
}

}  // namespace cleave
