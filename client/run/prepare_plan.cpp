// The plans of a run: of the client, of each body and of each replica.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/run/prepare_parts.h"
#include "common/device/torch_errors.h"
#include "common/files/environment.h"

namespace cleave {

void dropUnusedFlows(PreparedRun& run) {
  const auto isUnused = [&](const auto& each) {
    return std::none_of(run.bodies.begin(), run.bodies.end(), [&](const RunPlan& body) {
      return body.place.contains(*flowFromName(each.first));
    });
  };
  std::erase_if(run.settings.codecs, isUnused);
  std::erase_if(run.settings.autoCodecs, isUnused);
}

RunPlan clientPlan(const RunSpec& spec, const ClientSettings& settings, const UserModel* model) {
  RunPlan plan = planClient(spec, innerCutsOf(settings.cutPositions()),
                            model == nullptr ? nullptr : model->blocks());
  plan.stage.scores = settings.scores;
  plan.stage.clientPrecision = settings.clientPrecision;
  plan.stage.defences.list = settings.defences;  // the key: see giveDefencesTheirKey()
  addDefences(plan.blocks, plan.stage.defences, plan.stage.cuts.cut0, plan.stage.cuts.cut1);
  if (maxReplicasOf(settings) > 1) plan.stage.bodyReplicas = settings.bodyReplicas;
  const std::vector<std::string>& members = settings.cohort.members;
  if (!members.empty()) {
    const auto own = std::ranges::find(members, settings.member);
    plan.member = static_cast<std::uint32_t>(own - members.begin());
  }
  return plan;
}

std::vector<RunPlan> bodyPlans(const RunPlan& plan, const ClientSettings& settings,
                               const Dataset& train, const UserModel* model) {
  std::vector<RunPlan> plans;
  const auto addReplicas = [&](const RunPlan& body) {
    for (std::uint32_t rank = 0; rank < body.spec.replicas; ++rank) {
      plans.push_back(planReplica(body, rank));
    }
  };
  if (settings.bodies() == 1) {
    addReplicas(plan);
    return plans;
  }
  RunSpec resolved = plan.spec;
  resolved.inFlight = plan.inFlight;
  for (const RunSpec& spec : bodyRunSpecs(resolved, settings, train, model)) {
    RunPlan body =
        planClient(spec, {}, isDivided(settings, model) ? model->blocks() : GraphBlocks());
    body.hasEdges = settings.hasEdges();
    if (settings.hasEdges() && !plans.empty()) checkEdgeCodecs(body, true, false);
    addReplicas(body);
  }
  return plans;
}

std::vector<RunPlan> PreparedRun::plansOfBodies() const {
  std::vector<RunPlan> first;
  for (const RunPlan& each : bodies) {
    if (each.stage.replica.rank == 0) first.push_back(each);
  }
  return first;
}

std::vector<Replica> PreparedRun::replicas() const {
  std::vector<Replica> all;
  for (const RunPlan& each : bodies) all.push_back(each.stage.replica);
  return all;
}

void planFor(PreparedRun& run, const RunSpec& spec) {
  // A second plan, with codecs that were chosen by measuring, has the key of the first one.
  const auto defenceKey = std::move(run.plan.stage.defences.key);
  run.plan = clientPlan(spec, run.settings, run.userModel.get());
  run.plan.stage.defences.key = defenceKey;
  run.bodies = bodyPlans(run.plan, run.settings, *run.data.train, run.userModel.get());
  run.plan.samplesOnDisk = run.settings.samplesOnDisk;
}

void requireProfilable(const PreparedRun& run) {
  if (!run.settings.inserts.empty()) {
    requireOneServer(run.settings, "a profile of a model with learned inserts");
  }
}

PreparedRun dividedAt(PreparedRun run, std::vector<std::string> cuts) {
  if (!run.userModel) return run;
  ClientSettings settings = run.settings;
  settings.cuts = run.userModel->positionsAmong(settings.cutNames, cuts);
  settings.cutNames = cuts;
  cuts.emplace_back("(rest)");
  run.userModel =
      withTorchErrors([&] { return std::make_shared<const UserModel>(settings, cuts); });
  settings.cutNames.clear();  // the positions count
  run.settings = std::move(settings);
  planFor(run, makeRunSpec(run.settings, run.data, run.userModel.get()));
  return run;
}

std::vector<std::string> cutsOf(const Profile& profile) {
  std::vector<std::string> names;
  for (const BlockProfile& block : profile.blocks) names.push_back(block.name);
  names.pop_back();
  return names;
}

void placeCodecs(PreparedRun& run) {
  useDeviceCodecs(run.plan, *run.device);
  for (RunPlan& body : run.bodies) {
    for (auto& [flow, codec] : body.codecs) {
      if (const FlowCodec* placed = run.plan.codecs.find(flow)) codec = *placed;
    }
  }
}

// The sum of six parts: the parameters with gradients and optimizer state; the tensors that
// autograd saves (in the head for all micro-batches in flight, in the tail for one); the decoded
// and encoded tensors of the head and the tail; the samples that their codecs keep; the encoded
// tensors that are passed on between servers; and the batches that the loader holds.
std::size_t clientBytes(const RunPlan& plan, const std::vector<RunPlan>& bodies,
                        const Dataset& train) {
  const int cut0 = plan.stage.cuts.cut0, cut1 = plan.stage.cuts.cut1;
  const auto bytesOf = [&](int first, int last, std::uint32_t inFlight) {
    return static_cast<double>(partBytes(plan.stage, plan.blocks, first, last,
                                         plan.stage.microBatches, inFlight,
                                         plan.load(usableCores())));
  };
  double bytes = bytesOf(0, cut0, plan.inFlight) +
                 bytesOf(cut1, static_cast<int>(plan.blocks.size()), 1) +
                 flowBytes(plan, Role::client) + samplesMemory(plan) + passedOnBytes(bodies);
  // The batches in use, the batches prepared ahead, and during an evaluation the first batch of the
  // next epoch.
  const double batches = 2 * plan.spec.staleness + Loader::Options().ahead + 2;
  for (const SampleArray& array : train.arrays()) {
    bytes += batches * plan.spec.maxBatch * static_cast<double>(specOf(array, 1).bytes());
  }
  return static_cast<std::size_t>(std::min(bytes, 0x1p62));
}

}  // namespace cleave
