#include "client/data/pictures/bilinear.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cleave {
namespace {

// Number of rows resized horizontally at once, so that the compiler vectorises over rows.
constexpr std::size_t kLanes = 8;

void narrowRows(const BilinearAxis& columns, const float* block, std::size_t rows, float* wide) {
  const std::size_t width = columns.outputs();
  for (std::size_t x = 0; x < width; ++x) {
    const float* from = block + columns.low(x) * kLanes;
    const float* weights = columns.weights(x);
    std::array<float, kLanes> sums{};
    for (std::size_t k = 0; k < columns.taps(); ++k, from += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[k] * from[lane];
    }
    for (std::size_t lane = 0; lane < rows; ++lane) wide[lane * width + x] = sums[lane];
  }
}

void widenRow(const BilinearAxis& columns, const float* from, float* wide) {
  const std::size_t width = columns.outputs();
  const float* weights = columns.weights(0);
  for (std::size_t x = 0; x < width; ++x, weights += 2) {
    wide[x] = weights[0] * from[columns.low(x)] + weights[1] * from[columns.high(x)];
  }
}

void addRow(const float* row, float weight, std::size_t width, float* sum) {
  for (std::size_t x = 0; x < width; ++x) sum[x] += weight * row[x];
}

void blendRows(const float* low, float lowWeight, const float* high, float highWeight,
               std::size_t width, float* sum) {
  for (std::size_t x = 0; x < width; ++x) sum[x] = lowWeight * low[x] + highWeight * high[x];
}

// Resizes all rows horizontally: [rows, columns.outputs()].
std::vector<float> resizeRows(const BilinearAxis& rows, const BilinearAxis& columns,
                              const ReadRow& readRow) {
  const std::size_t count = rows.end() - rows.begin();
  const std::size_t width = columns.outputs();
  const std::size_t lanes = columns.isLonger() ? 1 : kLanes;
  std::vector<float> wide(count * width);
  std::vector<float> block((columns.end() - columns.begin()) * lanes);
  for (std::size_t first = 0; first < count; first += lanes) {
    const std::size_t some = std::min(lanes, count - first);
    for (std::size_t lane = 0; lane < some; ++lane) {
      readRow(rows.begin() + first + lane, block.data() + lane, static_cast<std::ptrdiff_t>(lanes));
    }
    float* to = wide.data() + first * width;
    if (columns.isLonger()) {
      widenRow(columns, block.data(), to);
    } else {
      narrowRows(columns, block.data(), some, to);
    }
  }
  return wide;
}

}  // namespace

BilinearAxis::BilinearAxis(std::int64_t from, std::int64_t to, std::int64_t first,
                           std::int64_t count) {
  if (from <= to) {
    addPairs(from, to, first, count);
  } else {
    addTriangles(from, to, first, count);
  }
  begin_ = low_.front();
  end_ = (isLonger() ? high_.back() : low_.back() + taps_ - 1) + 1;
  for (std::size_t& low : low_) low -= begin_;
  for (std::size_t& high : high_) high -= begin_;
}

// PyTorch's rule (area_pixel_compute_source_index): the centre of pixel x is at x + 0.5.
void BilinearAxis::addPairs(std::int64_t from, std::int64_t to, std::int64_t first,
                            std::int64_t count) {
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  const auto outputs = static_cast<std::size_t>(count);
  low_.resize(outputs);
  high_.resize(outputs);
  weights_.resize(2 * outputs);
  for (std::size_t n = 0; n < outputs; ++n) {
    const auto x = static_cast<float>(first + static_cast<std::int64_t>(n));
    const float source = std::max(0.0f, scale * (x + 0.5f) - 0.5f);
    const auto low = std::min(static_cast<std::int64_t>(source), from - 1);
    const float weight = std::min(source - static_cast<float>(low), 1.0f);
    low_[n] = static_cast<std::size_t>(low);
    high_[n] = static_cast<std::size_t>(std::min(low + 1, from - 1));
    weights_[2 * n] = 1.0f - weight;
    weights_[2 * n + 1] = weight;
  }
}

// The weight of an input falls linearly with the distance between its centre and the output's
// centre, to 0 at a distance of one output. The range of inputs is the same as in Pillow and
// PyTorch. All outputs have as many taps as the widest output needs; surplus taps have weight 0.
void BilinearAxis::addTriangles(std::int64_t from, std::int64_t to, std::int64_t first,
                                std::int64_t count) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const auto centreOf = [&](std::int64_t x) { return scale * (static_cast<double>(x) + 0.5); };
  const auto lowOf = [&](std::int64_t x) {
    return std::max<std::int64_t>(0,
                                  static_cast<std::int64_t>(std::floor(centreOf(x) - scale + 0.5)));
  };
  const auto endOf = [&](std::int64_t x) {
    return std::min<std::int64_t>(from,
                                  static_cast<std::int64_t>(std::floor(centreOf(x) + scale + 0.5)));
  };
  taps_ = 0;
  for (std::int64_t x = first; x < first + count; ++x) {
    taps_ = std::max(taps_, static_cast<std::size_t>(endOf(x) - lowOf(x)));
  }
  low_.reserve(static_cast<std::size_t>(count));
  weights_.reserve(static_cast<std::size_t>(count) * taps_);
  std::vector<double> weights(taps_);
  for (std::int64_t x = first; x < first + count; ++x) {
    const std::int64_t low = std::min(lowOf(x), from - static_cast<std::int64_t>(taps_));
    double sum = 0;
    for (std::size_t k = 0; k < taps_; ++k) {
      const double centre = static_cast<double>(low) + static_cast<double>(k) + 0.5;
      weights[k] = std::max(0.0, 1.0 - std::abs(centre - centreOf(x)) / scale);
      sum += weights[k];
    }
    for (const double weight : weights) weights_.push_back(static_cast<float>(weight / sum));
    low_.push_back(static_cast<std::size_t>(low));
  }
}

void resizeChannel(const BilinearAxis& rows, const BilinearAxis& columns, const ReadRow& readRow,
                   std::span<float> out) {
  // Horizontally first, so that each input row is read only once.
  const std::vector<float> wide = resizeRows(rows, columns, readRow);
  const std::size_t width = columns.outputs();
  float* to = out.data();
  for (std::size_t y = 0; y < rows.outputs(); ++y, to += width) {
    const float* low = wide.data() + rows.low(y) * width;
    const float* weights = rows.weights(y);
    if (rows.isLonger()) {
      const float* high = wide.data() + rows.high(y) * width;
      blendRows(low, weights[0], high, weights[1], width, to);
      continue;
    }
    std::fill(to, to + width, 0.0f);
    for (std::size_t k = 0; k < rows.taps(); ++k, low += width) {
      addRow(low, weights[k], width, to);
    }
  }
}

}  // namespace cleave
