// How a run goes at the server: its last batch, and means over the last seconds.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/pipeline/engine.h"
#include "common/pipeline/transfers.h"

namespace cleave {

// Shares of the time that a resource was at work, as far as a server can know: 0…1.
struct PaceShares {
  double compute = 0;  // the body's forward, backward and update
  double codec = 0;
  double up = 0, down = 0;  // the link, by its rate while something crosses
};

struct PaceState {
  Phase phase = Phase::train;
  std::uint64_t step = 0;
  double imagesPerSecond = 0;
  double up = 0, down = 0;  // bytes a second
  PaceShares shares;
  double idleSeconds = 0;  // since the last batch was done
};

// What a run waits for: "server compute", "codec", "uplink" or "downlink" where that was at work
// for half of the time or more, else "client or latency", of which a server sees nothing.
std::string bottleneckOf(const PaceShares& shares);

class Pace {
 public:
  // `rateUp`, `rateDown`: of the link, in bytes a second; 0: not known. Device thread.
  void finishedBatch(const MicroBatch& at, const ActionSeconds& actions, const LinkTotals& totals,
                     double rateUp, double rateDown, SteadyTime time = now());
  // Nothing before the first batch. Any thread.
  std::optional<PaceState> state(SteadyTime time = now()) const;

 private:
  mutable std::mutex mutex_;
  std::optional<PaceState> state_;
  std::optional<SteadyTime> last_;  // a batch was done
  LinkTotals lastTotals_;
  bool hasMeans_ = false;
};

}  // namespace cleave
