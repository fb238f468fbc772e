// Series and distributions of bounded size, whatever the number of values. Not for several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cleave {

// The width of buckets, common to series that are drawn together: their points then stand at the
// same places. It doubles when a series needs more buckets than `most`.
class Grid {
 public:
  Grid(double width, std::size_t most) : width_(width), most_(most) {}
  double width() const { return width_; }
  // Grows until x has a bucket. Requires x >= 0.
  void cover(double x) {
    while (x >= width_ * static_cast<double>(most_)) width_ *= 2;
  }

 private:
  double width_;
  std::size_t most_;
};

// The least, the greatest and the mean of the values in each bucket of a grid: no peak is lost.
class Series {
 public:
  struct Bucket {
    double least = std::numeric_limits<double>::infinity();
    double greatest = -std::numeric_limits<double>::infinity();
    double sum = 0;
    std::uint64_t values = 0;

    double mean() const { return sum / static_cast<double>(values); }
    void add(const Bucket& other);
  };

  // The grid outlives the series.
  explicit Series(Grid& grid) : grid_(&grid), width_(grid.width()) {}

  // Requires a finite x >= 0 and a finite value.
  void add(double x, double value);
  std::uint64_t values() const { return values_; }
  // Bucket k has the x from k * width to (k + 1) * width; some have no values.
  const std::vector<Bucket>& buckets();

 private:
  void follow();

  Grid* grid_;
  double width_;
  std::uint64_t values_ = 0;
  std::vector<Bucket> buckets_;
};

// How often values occur, in classes a twentieth of a decade wide: quantiles are right within 6 %.
class Histogram {
 public:
  static constexpr int kPerDecade = 20;

  void add(double value);  // those that are not above 0 count, but are in no class
  struct Class {
    double least = 0, greatest = 0;
    std::uint64_t values = 0;
  };
  // From the first to the last that has any, in order; `together` of them as one.
  std::vector<Class> classes(int together) const;
  // 0 < share < 1. Requires values() > 0.
  double quantile(double share) const;
  std::uint64_t values() const { return values_; }

 private:
  static constexpr int kLeastDecade = -9, kMostDecade = 13;
  static constexpr std::size_t kClasses = 440;  // of these decades

  std::vector<std::uint64_t> counts_;
  std::uint64_t values_ = 0;
};

// Bytes by second of the run.
class BytesBySecond {
 public:
  static constexpr double kMostSeconds = 4e6;  // 46 days, in 32 MB

  // Spreads them evenly over the `seconds` that end at `end`. Requires end < kMostSeconds.
  void add(double end, double seconds, double bytes);
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  std::vector<double> seconds_;
};

}  // namespace cleave
