#include "client/report/records/server_steps.h"

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

// The element of a vector that grows up to the maximum number of steps; null beyond it.
template <typename Value>
Value* grownTo(std::vector<Value>& values, double step) {
  const auto index = static_cast<std::size_t>(step);
  if (index >= kMaxKeptSteps) return nullptr;
  if (index >= values.size()) values.resize(index + 1);
  return &values[index];
}

}  // namespace

void ServerSteps::add(const Step& step) {
  if (steps_.size() < kMaxKeptSteps) steps_.push_back(step);
}

void ServerSteps::addCodec(double step, double seconds) {
  if (float* const sum = grownTo(codecSeconds_, step)) *sum += static_cast<float>(seconds);
}

void ServerSteps::addServer(std::size_t number) { servers_.try_emplace(number, axis_); }

void ServerSteps::addRow(std::size_t number, double step, double computed, double coded) {
  Server& server = servers_.at(number);
  server.last = std::max(server.last, step);
  if (Work* const work = grownTo(server.rows, step))
    *work = {static_cast<float>(computed), static_cast<float>(coded)};
}

const ServerSteps::Work* ServerSteps::workOf(const Server& server, double step) const {
  const auto index = static_cast<std::size_t>(step);
  if (index >= server.rows.size() || server.rows[index].computed < 0) return nullptr;
  return &server.rows[index];
}

void ServerSteps::divide(std::size_t servers, bool hasEnded) {
  const auto count = static_cast<double>(servers);
  for (std::size_t n = coded_.size(); n < steps_.size(); ++n) {
    const Step& one = steps_[n];
    const auto index = static_cast<std::size_t>(one.step);
    // Of a step that was redone, all transfers count for its first row.
    const float coded = index < codecSeconds_.size() ? std::exchange(codecSeconds_[index], 0) : 0;
    coded_.push_back(static_cast<double>(coded) / count);
    seen_.add(one.step, one.isWarmUp, one.seconds, one.computed / count, coded_.back(), one.wire);
  }
  for (auto& [number, server] : servers_) {
    for (; server.divided < steps_.size(); ++server.divided) {
      const Step& one = steps_[server.divided];
      const Work* const work = workOf(server, one.step);
      if (work == nullptr && !hasEnded && server.last <= one.step) break;
      server.split.add(one.step, one.isWarmUp, one.seconds,
                       work ? static_cast<double>(work->computed) : one.computed / count,
                       work ? static_cast<double>(work->coded) : coded_[server.divided], one.wire);
    }
  }
}

bool ServerSteps::areSeenByClient() const {
  const bool haveRows = std::any_of(servers_.begin(), servers_.end(),
                                    [](const auto& each) { return each.second.last >= 0; });
  return !haveRows && seen_.compute.values() > 0;
}

std::vector<StepSplit*> ServerSteps::splits() {
  if (servers_.empty() || areSeenByClient()) return {&seen_};
  std::vector<StepSplit*> splits;
  for (auto& [number, server] : servers_) splits.push_back(&server.split);
  return splits;
}

}  // namespace cleave
