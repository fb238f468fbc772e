#include "client/report/records/run_totals.h"

#include <algorithm>

namespace cleave {

SpentByRows::Sums& SpentByRows::Sums::operator+=(const Sums& more) {
  seconds += more.seconds;
  rawBytes += more.rawBytes;
  for (std::size_t d = 0; d < kDirections; ++d) {
    tensors[d] += more.tensors[d];
    control[d] += more.control[d];
  }
  return *this;
}

void SpentByRows::beginProcess(double time) {
  before_ = sums();
  process_ = {};
  last_ = time;
}

void SpentByRows::add(double time, const Sums& row) {
  process_ += row;
  process_.seconds += std::max(0.0, time - last_.value_or(time));
  last_ = time;
}

void SpentByRows::checkpoint(std::uint64_t step) {
  constexpr std::size_t kMaxMarks = 64;
  marks_.push_back({step, sums()});
  if (marks_.size() > kMaxMarks) marks_.pop_front();
}

void SpentByRows::resume(std::uint64_t step) {
  while (!marks_.empty() && marks_.back().step > step) marks_.pop_back();
  if (step == 0) {
    before_ = {};
  } else if (!marks_.empty() && marks_.back().step == step) {
    before_ = marks_.back().sums;
  }
}

SpentByRows::Sums SpentByRows::sums() const {
  Sums sum = before_;
  sum += process_;
  return sum;
}

}  // namespace cleave
