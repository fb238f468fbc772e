#include "common/run/experiment_fields.h"

#include "common/engine/schedule.h"
#include "common/model/stage/deterministic_scope.h"
#include "common/run/plan.h"
#include "common/topology/division.h"

namespace cleave {
namespace {

constexpr double kMany = std::int64_t{1} << 31;
constexpr double kMaxMicroBatches = 1 << 16;

std::string schedulesText() {
  std::string text;
  for (const Schedule& row : scheduleTable()) {
    text += (text.empty() ? "`" : ", `") + std::string(row.name) + "`";
  }
  return text;
}

std::vector<ExperimentField> makeFields() {
  using E = Experiment;
  return {
      {"run.seed",
       &E::seed,
       {0, kMany},
       "",
       "seed for initial weights, order of samples, augmentation and dropout"},
      {"model", &E::model},
      {"insert", &E::inserts},
      {"train.micro_batches",
       &E::microBatches,
       {1, kMaxMicroBatches},
       "",
       "micro-batches per batch, at most `train.batch`"},
      {"train.schedule",
       &E::schedule,
       {},
       "",
       "order of computation and transfers; see [schedules](#schedules)",
       schedulesText(),
       [](const E& experiment) { findSchedule(experiment.schedule); }},
      {"train.staleness",
       &E::staleness,
       {0, kMaxStaleness},
       "steps",
       "number of steps by which the weights of a step lag behind, so that steps overlap; see "
       "[asynchronous steps](#asynchronous-steps); 0: steps do not overlap",
       "",
       [](const E& experiment) {
         checkStaleness(findSchedule(experiment.schedule), experiment.staleness);
       }},
      {"train.in_flight",
       &E::inFlight,
       {0, kMaxMicroBatches * (kMaxStaleness + 1)},
       "micro-batches",
       "maximum micro-batches in flight; memory grows with it; 0: the schedule's default",
       "",
       [](const E& experiment) {
         resolveInFlight(findSchedule(experiment.schedule), experiment.inFlight,
                         experiment.microBatches * (experiment.staleness + 1));
       }},
      {"train.clip_value",
       &E::clipValue,
       {0, 1e12},
       "",
       "maximum of each value of the gradients, without its sign, after `train.clip_norm`; 0: no "
       "limit"},
      {"train.ema",
       &E::averageDecay,
       {0, 0.9999999},
       "",
       "decay of a moving average of the weights, such as `0.999`; evaluations use the average, "
       "and `model.safetensors` contains it; `0`: no average"},
      {"train.recompute",
       &E::recompute,
       {},
       "",
       "saves memory: head and body keep only their inputs for the backward pass, and compute the "
       "forward pass again"},
      {"train.optimizer", &E::optimizer},
      {"train.freeze", &E::freeze},
      {"precision.server", &E::bodyPrecision, {}, "", "arithmetic of the body"},
      {"codec", &E::codecs},
      {"non_finite.raw", &E::rawNonFinite},
      {"replicas", &E::replicas, {1, kMaxBodyReplicas}},
      {"cohort", &E::cohort},
      {"device_bits",
       &E::deviceBits,
       {},
       "",
       "on a GPU: `exact` gives the same bits in every computation, and refuses operators that "
       "have "
       "no deterministic implementation; `fast` allows any algorithm. See [GPUs](#gpus)",
       "`exact`, `fast`",
       [](const E& experiment) { checkDeviceBits(experiment.deviceBits); }},
      {"threads.server",
       &E::serverThreads,
       {0, 1024},
       "",
       "number of threads requested from the server; 0: the server chooses"},
  };
}

}  // namespace

std::span<const ExperimentField> experimentFields() {
  static const std::vector<ExperimentField> kFields = makeFields();
  return kFields;
}

}  // namespace cleave
