#include "client/train/trial_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/link/trial.h"

namespace cleave {

RunSpec trialSpec(const PreparedRun& run) {
  RunSpec spec = run.bodies.front().spec;
  spec.trace = {};
  spec.averageDecay = 0;
  spec.initialWeights = false;
  return spec;
}

wire::Hello trialHello(const PreparedRun& run, const RunSpec& spec, unsigned number) {
  wire::Hello hello = run.hello;
  hello.clear_features();
  hello.add_features(std::string(kTrialFeature));
  if (!spec.inserts.empty()) hello.add_features(std::string(kInsertFeature));
  const std::string& id = run.hello.run_id();
  constexpr std::size_t kMaxTail = 55;
  hello.set_run_id(
      fmt::format("trial-{}-{}", number, id.substr(id.size() - std::min(id.size(), kMaxTail))));
  toWire(spec, *hello.mutable_run_spec());
  return hello;
}

}  // namespace cleave
