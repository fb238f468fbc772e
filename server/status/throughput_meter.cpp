#include "server/status/throughput_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cleave {
namespace {

constexpr double kMemory = 3;  // time constant of the means, in seconds

}  // namespace

std::string bottleneckOf(const PaceShares& shares) {
  const std::pair<double, const char*> resources[] = {{shares.compute, "server compute"},
                                                      {shares.codec, "codec"},
                                                      {shares.up, "uplink"},
                                                      {shares.down, "downlink"}};
  const auto [share, name] = *std::max_element(std::begin(resources), std::end(resources));
  return share >= 0.5 ? name : "client or latency";
}

void ThroughputMeter::finishedBatch(const MicroBatch& at, const ActionSeconds& actions,
                                    const LinkTotals& totals, double rateUp, double rateDown,
                                    SteadyTime time) {
  const std::lock_guard lock(mutex_);
  const LinkTotals before = std::exchange(lastTotals_, totals);
  const auto last = std::exchange(last_, time);
  const bool isFirst = !state_;
  if (isFirst) state_.emplace();
  state_->phase = at.phase;
  if (at.phase == Phase::train) state_->step = at.step;  // an evaluation counts its own batches
  // The first batch has no interval to measure.
  if (isFirst) return;
  const double seconds = std::max(secondsBetween(*last, time), 1e-6);
  const double weight = std::exchange(hasMeans_, true) ? 1 - std::exp(-seconds / kMemory) : 1;
  const auto follow = [&](double& mean, double amount) {
    mean += weight * (amount / seconds - mean);
  };
  const auto busy = [](double bytes, double rate) { return rate > 0 ? bytes / rate : 0; };
  const auto up = static_cast<double>(totals.up() - before.up());
  const auto down = static_cast<double>(totals.down() - before.down());
  follow(state_->samplesPerSecond, at.phase == Phase::train ? at.batch.samples : 0);
  follow(state_->up, up);
  follow(state_->down, down);
  follow(state_->shares.compute,
         actions[indexOf(ActionKind::bodyForward)] + actions[indexOf(ActionKind::bodyBackward)] +
             actions[indexOf(ActionKind::bodyWeights)] + actions[indexOf(ActionKind::update)]);
  follow(state_->shares.codec,
         totals.encodeSeconds - before.encodeSeconds + totals.decodeSeconds - before.decodeSeconds);
  follow(state_->shares.up, busy(up, rateUp));
  follow(state_->shares.down, busy(down, rateDown));
}

std::optional<Throughput> ThroughputMeter::state(SteadyTime time) const {
  const std::lock_guard lock(mutex_);
  if (!state_) return std::nullopt;
  Throughput state = *state_;
  state.idleSeconds = secondsBetween(*last_, time);
  return state;
}

}  // namespace cleave
