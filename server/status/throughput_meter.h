// A run's progress on the server: its latest batch, and means over the last seconds.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/engine/engine.h"
#include "common/link/transfers.h"

namespace cleave {

// Fraction of time (0 to 1) that each resource was busy, as far as a server can measure it.
struct PaceShares {
  double compute = 0;  // the body's forward, backward and update
  double codec = 0;
  double up = 0, down = 0;  // bytes on the link divided by its rate
};

struct Throughput {
  Phase phase = Phase::train;  // of the latest batch
  std::uint64_t step = 0;      // the latest training step; 0 before the first
  double samplesPerSecond = 0;
  double up = 0, down = 0;  // bytes per second
  PaceShares shares;
  double idleSeconds = 0;  // since the last batch ended
};

// The bottleneck of a run: "server compute", "codec", "uplink" or "downlink" if that resource was
// busy for at least half of the time, otherwise "client or latency", because a server cannot
// measure these.
std::string bottleneckOf(const PaceShares& shares);

class ThroughputMeter {
 public:
  // `rateUp`, `rateDown`: rates of the link in bytes per second; 0: unknown. Device thread.
  void finishedBatch(const MicroBatch& at, const ActionSeconds& actions, const LinkTotals& totals,
                     double rateUp, double rateDown, SteadyTime time = now());
  // Nullopt before the first batch. Any thread.
  std::optional<Throughput> state(SteadyTime time = now()) const;

 private:
  mutable std::mutex mutex_;
  std::optional<Throughput> state_;
  std::optional<SteadyTime> last_;  // end of the last batch
  LinkTotals lastTotals_;
  bool hasMeans_ = false;
};

}  // namespace cleave
