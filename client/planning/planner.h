// Searches for the settings with which a run's predicted step is shortest: servers, replicas, cuts,
// micro-batches, schedule, number in flight, and codecs. Computes only from profiles; opens no
// connection.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/planning/step_prediction.h"
#include "client/run/prepare.h"

namespace cleave {

// The run of this configuration, with its exported model divided as in the client's profile.
PreparedRun profiledRun(const RunOptions& options, const Profile& client);

// Plans whose steps are at most this much longer than the shortest one count as equally fast.
inline constexpr double kPlanTolerance = 0.03;

struct PlannerOptions {
  std::function<void(StepCosts&)> setLinks;  // sets the rates, latencies and queues of the links
  // From the least to the most lossy one. Empty: each flow keeps its configured codec; a flow with
  // `auto` may have any codec that `auto` chooses from.
  std::vector<ParsedCodec> codecs;
  bool keepsCuts = false;
  std::uint32_t staleness = 0;       // the maximum
  std::uint32_t replicas = 1;        // the maximum
  double clientMemory = 0;           // limit in bytes
  std::vector<double> serverMemory;  // limit of each body's server, in bytes
};

// Settings, and what is predicted for them.
struct PlannedRun {
  RunSpec spec;                         // with the number in flight, not 0
  std::vector<int> cuts;                // of all bodies
  std::vector<std::uint32_t> replicas;  // of each body
  ParsedCodecs codecs;                  // of all flows
  double loss = 0;     // of the codecs, in arbitrary units; 0: the first of each list
  double seconds = 0;  // per step, with full batches; with staleness, of a long run
  // Per step, over the client's links to all servers.
  double bytesUp = 0, bytesDown = 0;
  double clientMemory = 0;           // bytes
  std::vector<double> serverMemory;  // bytes, of each body's server; of replicas, of each one
  StepBound bound;
  std::optional<std::size_t> bottleneckServer;  // see bottleneckServer()

  double maxServerMemory() const;
};

struct Plans {
  // Plans within kPlanTolerance of the shortest step and within the memory limits, at most one per
  // combination of cuts, replicas, micro-batches, staleness and codecs. The first is the best: the
  // lowest staleness, then the least lossy codecs, then the fewest replicas, then the fewest bytes,
  // then the least memory.
  std::vector<PlannedRun> best;
  double shortest = 0;         // seconds of the shortest step of all plans
  PlannedRun configured;       // what the configuration says, even if it exceeds a limit
  std::size_t considered = 0;  // combinations of cuts, replicas, micro-batches, staleness, codecs
};

// The error "bad-staleness" of a prediction in which steps of a cohort overlap.
UsageError noOverlapOfCohorts();

// Considers the configured number of micro-batches and those in profiledMicroBatches(), and a
// staleness of 0, 1, 2, 4, … up to the maximum, except with loss scaling. A single body may have
// 1, 2, … replicas, up to the maximum and the number of micro-batches. Considers all cuts for
// one server; of an exported model, those of dividedAt(). For n servers, it considers the best cuts
// for n - 1 servers with one more cut, and moves single cuts of the best ones to any position as
// long as their bound decreases. A plan with n servers uses the first n of `servers`. Models with
// inserts, and keepsCuts, keep the configured cuts. Requires a profile in `servers`, and a limit of
// memory, for each configured body. The members of a cohort have equal links. Throws UsageError
// "no-plan" if no plan is within the limits, "other-profile", and "bad-staleness" if steps of a
// cohort may overlap.
Plans makePlans(const PreparedRun& run, const Profile& client, std::span<const Profile> servers,
                const PlannerOptions& options);

}  // namespace cleave
