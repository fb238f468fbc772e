// Series and distributions that have a bounded size for any number of values. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cleave {

// The bucket width shared by series that are drawn together, so that their points have the same x.
// It doubles when a series needs more than `max` buckets.
class BucketAxis {
 public:
  BucketAxis(double width, std::size_t max) : width_(width), max_(max) {}
  double width() const { return width_; }
  // Doubles the width until x falls into a bucket. Requires x >= 0.
  void cover(double x) {
    while (x >= width_ * static_cast<double>(max_)) width_ *= 2;
  }

 private:
  double width_;
  std::size_t max_;
};

// Minimum, maximum and mean of the values in each bucket of an axis, so that no peak is lost.
class Series {
 public:
  struct Bucket {
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;
    std::uint64_t values = 0;

    double mean() const { return sum / static_cast<double>(values); }
    void add(const Bucket& other);
  };

  // The axis must outlive the series.
  explicit Series(BucketAxis& axis) : axis_(&axis), width_(axis.width()) {}

  // Requires a finite x >= 0 and a finite value.
  void add(double x, double value);
  std::uint64_t values() const { return values_; }
  // Bucket k covers the range [k * width, (k + 1) * width) of x. A bucket may be empty.
  const std::vector<Bucket>& buckets();

 private:
  void follow();

  BucketAxis* axis_;
  double width_;
  std::uint64_t values_ = 0;
  std::vector<Bucket> buckets_;
};

// A histogram with 20 bins (Class) per decade. A bin is 12 % wide, so quantiles are accurate within
// 12 %.
class Histogram {
 public:
  static constexpr int kPerDecade = 20;

  void add(double value);  // values <= 0 are counted but are in no bin
  struct Class {
    double min = 0, max = 0;
    std::uint64_t values = 0;
  };
  // The bins from the first to the last non-empty one, in order. Each group of `together` bins is
  // merged.
  std::vector<Class> classes(int together) const;
  // 0 < share < 1. Requires values() > 0.
  double quantile(double share) const;
  std::uint64_t values() const { return values_; }

 private:
  static constexpr int kMinDecade = -9, kMaxDecade = 13;
  static constexpr std::size_t kClasses = 440;  // number of bins, for 22 decades

  std::vector<std::uint64_t> counts_;
  std::uint64_t values_ = 0;
};

// Bytes in each second of the run.
class BytesBySecond {
 public:
  static constexpr double kMaxSeconds = 4e6;  // 46 days, in 32 MB

  // Spreads the bytes evenly over the `seconds` before `end`. Requires end < kMaxSeconds.
  void add(double end, double seconds, double bytes);
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  std::vector<double> seconds_;
};

}  // namespace cleave
