// The costs of a client's training steps, from measurements on both sides. They are the input of
// the bound and the simulator.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/engine/engine.h"
#include "common/link/transfers.h"
#include "common/predict/bound.h"
#include "common/topology/step.h"

namespace cleave {

struct LinkSpeed {
  double rateUp = 0, rateDown = 0;  // bytes per second; 0: unknown
  double roundTripSeconds = 0;
};

class StepMeter {
 public:
  // `places`: those of the bodies, in the order of the model. `replicas`: the number of each
  // body's; empty: one each.
  explicit StepMeter(const std::vector<Place>& places = {{}},
                     const std::vector<std::uint32_t>& replicas = {});
  // Call after a training step. `client`: the seconds of the client's actions. `bodies`: one report
  // per body, which contain their edges. `links`: one element per server; of replicas, the fastest
  // one counts. `totals`: of all links
  // together. Returns nullopt until the bytes of every flow are known. An unknown rate is 0.
  std::optional<StepCosts> measure(const MicroBatch& at, const ActionSeconds& client,
                                   const std::vector<BodyDone>& bodies, const LinkTotals& totals,
                                   const std::vector<LinkSpeed>& links);
  // Call after an evaluation batch.
  void pass(const LinkTotals& totals) { before_ = totals; }

  // The mean over the measured steps that have the most micro-batches, excluding the first step,
  // which is a warm-up. Rates and latency are the most recent ones. Nullopt before the second step.
  std::optional<StepCosts> mean() const;

 private:
  void add(const StepCosts& costs);
  static void setLink(BodyCosts& body, std::span<const LinkSpeed> links);
  static void setEdge(StepCosts& costs, std::size_t b, const EdgeReport& report);
  void setFlow(FlowCosts& costs, Flow flow, const LinkTotals& totals) const;

  LinkTotals before_;
  StepCosts last_;
  StepCosts sum_;  // sums of seconds and bytes
  std::uint64_t steps_ = 0;
  bool warm_ = false;
};

}  // namespace cleave
