// Computes the costs of a step from profiles, and predicts the step's time with each schedule.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/predict/bound.h"
#include "common/predict/profile.h"
#include "common/run/plan.h"

namespace cleave {

// Reads the servers' profiles. A single file counts for all bodies. `allowsMore`: there may be more
// servers than bodies. Throws UsageError "bad-value" if the number of files does not fit, and
// "bad-profile".
std::vector<Profile> readServerProfiles(const std::vector<std::string>& files, std::size_t bodies,
                                        bool allowsMore);
// Throws UsageError "other-profile" if the blocks in a profile differ in size from the model's.
void checkProfiles(const RunPlan& plan, const Profile& client, std::span<const Profile> servers);

// In a cohort: how an equal share of a batch of this many samples is divided; else the batch. The
// sizes that members really have vary around it.
Division divisionOfMember(const RunPlan& plan, std::uint32_t batch);
// Adds the members of a cohort to the costs of a step of one member, in which costs.microBatches
// are its own; afterwards, they are those of all. `plan`: the client's. `batch`: samples of all
// members.
void setMembers(StepCosts& costs, const RunPlan& plan, std::uint32_t batch);
// The costs of `count` replicas of a body; the seconds of their sum stay 0. `microBatches`: M of a
// step.
ReplicaCosts replicaCosts(const RunPlan& body, std::uint32_t count, std::uint32_t microBatches);
// Returns the costs of a full batch's step. The links' rates and latencies, and the seconds of the
// replicas' sum, stay 0. The size of an encoded tensor is the maximum that its codec writes.
// `plan`: the client's; `bodies` and `servers`: the plan and the profile of each body. Throws
// UsageError "other-profile" if a profile is of another model.
StepCosts profiledCosts(const RunPlan& plan, std::span<const RunPlan> bodies, std::uint32_t batch,
                        const Profile& client, std::span<const Profile> servers);
// Replaces only the costs of the flows, for other codecs in `bodies`.
void setFlows(StepCosts& costs, const RunPlan& plan, std::span<const RunPlan> bodies,
              std::uint32_t batch, const Profile& client, std::span<const Profile> servers);

// The schedules whose steps can be predicted from these costs. Schedules that split the backward
// are included only if the durations of its parts are known (BodyCosts::weights).
std::vector<const Schedule*> predictableSchedules(const StepCosts& costs);

// The number in flight to predict with: `asked`, clamped to what the schedule supports with the
// micro-batches of D + 1 steps; if it is 0, the schedule's default. All of them unless the place of
// all bodies limitsInFlight().
std::uint32_t predictedInFlight(const StepCosts& costs, const Schedule& schedule,
                                std::uint32_t asked, std::uint32_t staleness = 0);

struct StepPrediction {
  StepBound bound;  // with an undivided backward
  struct Of {
    std::string schedule;
    double seconds = 0;
    double bound = 0;  // seconds; may be lower if the schedule splits the backward
  };
  std::vector<Of> schedules;
  double bestOrder = 0;  // seconds with the best order that a search found
};
// `inFlight`: see predictedInFlight().
StepPrediction predictStep(const StepCosts& costs, std::uint32_t inFlight = 0);
// The index of the server that is the bottleneck, or whose link is; nullopt if there is only one
// server, or if the bottleneck does not belong to a single server.
std::optional<std::size_t> bottleneckServer(const StepCosts& costs, const StepBound& bound);
// Such as "uplink", or, with bottleneckServer(), "uplink, server 2".
std::string bottleneckText(Bottleneck bottleneck, std::optional<std::size_t> server);

// The costs as JSON, with the prediction if it is not null.
nlohmann::ordered_json toJson(const StepCosts& costs, std::uint32_t batch,
                              const StepPrediction* prediction = nullptr);

}  // namespace cleave
