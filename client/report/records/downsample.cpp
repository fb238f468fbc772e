#include "client/report/records/downsample.h"

#include <algorithm>
#include <cmath>

namespace cleave {

void Series::Bucket::add(const Bucket& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  values += other.values;
}

void Series::add(double x, double value) {
  axis_->cover(x);
  follow();
  const auto index = static_cast<std::size_t>(x / width_);
  if (index >= buckets_.size()) buckets_.resize(index + 1);
  buckets_[index].add({value, value, value, 1});
  ++values_;
}

const std::vector<Series::Bucket>& Series::buckets() {
  follow();
  return buckets_;
}

// Merges pairs of buckets until their width is the axis's width.
void Series::follow() {
  for (; width_ < axis_->width(); width_ *= 2) {
    const std::size_t half = (buckets_.size() + 1) / 2;
    for (std::size_t i = 0; i < half; ++i) {
      Bucket merged = buckets_[2 * i];
      if (2 * i + 1 < buckets_.size()) merged.add(buckets_[2 * i + 1]);
      buckets_[i] = merged;
    }
    buckets_.resize(half);
  }
}

void Histogram::add(double value) {
  static_assert(kClasses == std::size_t{kMaxDecade - kMinDecade} * kPerDecade);
  ++values_;
  if (!(value > 0)) return;
  if (counts_.empty()) counts_.resize(kClasses);
  const double place = std::floor(kPerDecade * (std::log10(value) - kMinDecade));
  const double last = static_cast<double>(counts_.size() - 1);
  ++counts_[static_cast<std::size_t>(std::clamp(place, 0.0, last))];
}

namespace {

double lowerEdge(int index, int minDecade) {
  return std::pow(10.0, minDecade + static_cast<double>(index) / Histogram::kPerDecade);
}

}  // namespace

std::vector<Histogram::Class> Histogram::classes(int together) const {
  std::vector<Class> all;
  for (int i = 0; i + together <= static_cast<int>(counts_.size()); i += together) {
    Class sum{lowerEdge(i, kMinDecade), lowerEdge(i + together, kMinDecade), 0};
    for (int j = i; j < i + together; ++j) sum.values += counts_[static_cast<std::size_t>(j)];
    if (sum.values > 0 || !all.empty()) all.push_back(sum);
  }
  while (!all.empty() && all.back().values == 0) all.pop_back();
  return all;
}

double Histogram::quantile(double share) const {
  std::uint64_t positive = 0;
  for (const std::uint64_t count : counts_) positive += count;
  double left = share * static_cast<double>(values_) - static_cast<double>(values_ - positive);
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const auto count = static_cast<double>(counts_[i]);
    if (count > 0 && left <= count) {
      const double within = std::max(0.0, left) / count;
      return lowerEdge(static_cast<int>(i), kMinDecade) * std::pow(10.0, within / kPerDecade);
    }
    left -= count;
  }
  return 0;
}

void BytesBySecond::add(double end, double seconds, double bytes) {
  const double begin = std::max(0.0, end - std::max(seconds, 0.0));
  const auto last = static_cast<std::size_t>(end);
  if (last >= seconds_.size()) seconds_.resize(last + 1);
  const auto first = static_cast<std::size_t>(begin);
  if (first == last) {
    seconds_[last] += bytes;
    return;
  }
  for (std::size_t second = first; second <= last; ++second) {
    const double from = std::max(begin, static_cast<double>(second));
    const double until = std::min(end, static_cast<double>(second + 1));
    seconds_[second] += bytes * (until - from) / (end - begin);
  }
}

}  // namespace cleave
