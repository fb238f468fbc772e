// Searches for the settings with which a run's predicted step is shortest: cuts, micro-batches,
// schedule, number in flight, and codecs. Computes only from profiles; opens no connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/train/prepare.h"
#include "client/train/step_prediction.h"

namespace cleave {

// Plans whose steps are at most this much longer than the shortest one count as equally fast.
inline constexpr double kPlanTolerance = 0.05;

struct PlannerOptions {
  BodyCosts link;  // only rates, latency and queue are used
  // From the least to the most lossy one. Empty: each flow keeps its configured codec; a flow with
  // `auto` may have any codec that `auto` chooses from.
  std::vector<std::string> codecs;
  bool keepsCuts = false;
  double clientMemory = 0, serverMemory = 0;  // limits in bytes
};

// Settings, and what is predicted for them.
struct PlannedRun {
  RunSpec spec;        // with the number in flight, not 0
  double loss = 0;     // of the codecs, in arbitrary units; 0: the first of each list
  double seconds = 0;  // per step, with full batches
  double bytesUp = 0, bytesDown = 0;          // per step
  double clientMemory = 0, serverMemory = 0;  // bytes
  StepBound bound;
};

struct Plans {
  // Plans within kPlanTolerance of the shortest step and within the memory limits, at most one per
  // combination of cuts, micro-batches and codecs. The first is the best: the least lossy codecs,
  // then the fewest bytes, then the least memory.
  std::vector<PlannedRun> best;
  PlannedRun configured;       // what the configuration says, even if it exceeds a limit
  std::size_t considered = 0;  // combinations of cuts, micro-batches and codecs
};

// Considers the configured number of micro-batches and those in profiledMicroBatches(). Considers
// all cuts, except for graphs, for models with inserts, and with keepsCuts: these keep the
// configured cuts. Throws UsageError "no-plan" if no plan is within the limits, and
// "other-profile".
Plans makePlans(const PreparedRun& run, const Profile& client, const Profile& server,
                const PlannerOptions& options);

}  // namespace cleave
