// Computes the costs of a step from profiles, and predicts the step's time with each schedule.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/predict/bound.h"
#include "common/predict/profile.h"
#include "common/run/plan.h"

namespace cleave {

// Throws UsageError "other-profile" if the blocks in a profile differ in size from the model's.
void checkProfiles(const RunPlan& plan, const Profile& client, const Profile& server);

// Returns the costs of a full batch's step with `plan`. The link's rates and latency stay 0. The
// size of an encoded tensor is the maximum that its codec writes. `wait`: the client's waits, which
// replace computation. Throws UsageError "other-profile" if a profile is of another model.
StepCosts profiledCosts(const RunPlan& plan, std::uint32_t batch, const StageWait& wait,
                        const Profile& client, const Profile& server);
// Replaces only the costs of the flows, for other codecs in `plan`.
void setFlows(StepCosts& costs, const RunPlan& plan, std::uint32_t batch, const Profile& client,
              const Profile& server);

// The schedules whose steps can be predicted from these costs. Schedules that split the backward
// are included only if the durations of its parts are known (BodyCosts::weights).
std::vector<const Schedule*> predictableSchedules(const StepCosts& costs);

struct StepPrediction {
  StepBound bound;  // with an undivided backward
  struct Of {
    std::string schedule;
    double seconds = 0;
    double bound = 0;  // seconds; may be lower if the schedule splits the backward
  };
  std::vector<Of> schedules;  // with their default numbers in flight
  double bestOrder = 0;       // seconds with the best order that a search found
};
StepPrediction predictStep(const StepCosts& costs);

// The costs as JSON, with the prediction if it is not null.
nlohmann::ordered_json toJson(const StepCosts& costs, std::uint32_t batch,
                              const StepPrediction* prediction = nullptr);

}  // namespace cleave
