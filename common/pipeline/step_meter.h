// What a client's training steps cost, from what both sides measured: what the bound and the
// simulator begin with.
#pragma once

#include <optional>

#include "common/core/step.h"
#include "common/pipeline/bound.h"
#include "common/pipeline/engine.h"
#include "common/pipeline/transfers.h"

namespace cleave {

struct LinkSpeed {
  double rateUp = 0, rateDown = 0;  // bytes a second; 0: not known
  double roundTripSeconds = 0;
};

class StepMeter {
 public:
  // After a training step; `actions` with the body's. Nothing where the bytes of a flow are not
  // known yet. Where a rate is not, it is 0.
  std::optional<StepCosts> measure(const MicroBatch& at, const ActionSeconds& actions,
                                   const LinkTotals& totals, const LinkSpeed& link);
  // After an evaluation's batch.
  void pass(const LinkTotals& totals) { before_ = totals; }

  // The mean of the steps measured with the most micro-batches, but for the first, which warms
  // things up; of rates and latency the last. Nothing before the second.
  std::optional<StepCosts> mean() const;

 private:
  void add(const StepCosts& costs);

  LinkTotals before_;
  StepCosts last_;
  StepCosts sum_;  // seconds and bytes added up
  std::uint64_t steps_ = 0;
  bool warm_ = false;
};

}  // namespace cleave
