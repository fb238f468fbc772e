#include "client/planning/trial_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/link/probe/trial.h"

namespace cleave {

RunSpec trialSpec(const PreparedRun& run, std::size_t body) {
  const RunPlan& plan = run.bodies[body];
  RunSpec spec = plan.spec;
  if (spec.replicas > 1) {  // a trial with the replica's share of the batches
    spec.microBatches = plan.microBatches;
    spec.maxBatch = plan.maxBatch;
    spec.trainBatch = std::min(spec.trainBatch, spec.maxBatch);
    spec.inFlight = plan.inFlight;
    spec.replicas = 1;
    spec.replica = 0;
  }
  spec.cohort = {};  // the other members may not be there
  spec.trace = {};
  spec.codecLevels = false;
  spec.watchEvery = 0;
  spec.averageDecay = 0;
  spec.initialWeights = false;
  // Codecs are measured in steps that do not overlap.
  if (spec.staleness > 0) {
    spec.staleness = 0;
    spec.inFlight = 0;
  }
  return spec;
}

wire::Hello trialHello(const PreparedRun& run, const RunSpec& spec, unsigned number) {
  wire::Hello hello = run.hello;
  hello.set_kind(wire::Hello::TRIAL);
  const std::string& id = run.hello.run_id();
  constexpr std::size_t kMaxTail = 55;
  hello.set_run_id(
      fmt::format("trial-{}-{}", number, id.substr(id.size() - std::min(id.size(), kMaxTail))));
  toWire(spec, *hello.mutable_run_spec());
  return hello;
}

}  // namespace cleave
