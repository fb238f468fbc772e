// Bilinear resizing, equivalent to PyTorch's interpolate with align_corners=False and
// antialias=True. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cleave {

// One axis of a resize: an output is a weighted sum of inputs. If the axis gets longer, an output
// has two inputs, and the edge is repeated beyond the image. If it gets shorter, the weights form a
// triangle as wide as two outputs, cut off at the edge.
class BilinearAxis {
 public:
  // Computes only the outputs [first, first + count) of resizing `from` inputs to `to`. All
  // arguments are positive, except that `first` may be 0.
  BilinearAxis(std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t count);
  BilinearAxis(std::int64_t from, std::int64_t to) : BilinearAxis(from, to, 0, to) {}

  std::size_t outputs() const { return low_.size(); }
  // Only the inputs [begin(), end()) are used.
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }

  // Output x is the sum of weights(x)[k] * input[begin() + low(x) + k], k < taps(). If the axis
  // gets longer, there are two weights, and the second input is at begin() + high(x).
  bool isLonger() const { return !high_.empty(); }
  std::size_t taps() const { return taps_; }
  std::size_t low(std::size_t x) const { return low_[x]; }
  std::size_t high(std::size_t x) const { return high_[x]; }
  const float* weights(std::size_t x) const { return weights_.data() + x * taps_; }

 private:
  void addPairs(std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t count);
  void addTriangles(std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t count);

  std::size_t begin_ = 0, end_ = 0;
  std::size_t taps_ = 2;
  std::vector<std::size_t> low_, high_;  // relative to begin_
  std::vector<float> weights_;           // [outputs, taps]
};

// Resizes one channel to [rows.outputs(), columns.outputs()] in `out`. Calls readRow(y, to, stride)
// once for each y in [rows.begin(), rows.end()), in order; it must write the inputs
// [columns.begin(), columns.end()) of row y to to[0], to[stride], …
using ReadRow = std::function<void(std::size_t y, float* to, std::ptrdiff_t stride)>;
void resizeChannel(const BilinearAxis& rows, const BilinearAxis& columns, const ReadRow& readRow,
                   std::span<float> out);

}  // namespace cleave
