#include "client/evaluate/comparison.h"

#include <ATen/ops/sub.h>

#include <cstring>

namespace cleave {
namespace {

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace

void Comparison::add(const at::Tensor& split, const at::Tensor& whole, const std::string& name) {
  values += static_cast<std::uint64_t>(whole.numel());
  if (split.sizes() != whole.sizes()) {
    note(INFINITY, name + " (shapes differ)");
    return;
  }
  const at::Tensor exact = whole.to(at::kCPU, at::kDouble);
  wholeSquares += exact.square().sum().item<double>();
  if (sameBits(split, whole)) return;
  const at::Tensor difference = at::sub(split.to(at::kCPU, at::kDouble), exact).abs();
  differenceSquares += difference.square().sum().item<double>();
  const double largest = difference.max().item<double>();
  note(std::isnan(largest) ? INFINITY : largest, name);
}

// Converting floats to doubles is lossless.
void Comparison::add(double split, double whole, const std::string& name) {
  ++values;
  wholeSquares += whole * whole;
  if (std::memcmp(&split, &whole, sizeof split) == 0) return;
  differenceSquares += (split - whole) * (split - whole);
  note(std::abs(split - whole), name);
}

void Comparison::note(double difference, const std::string& name) {
  equal = false;
  if (!std::isfinite(difference)) differenceSquares = INFINITY;
  if (difference < largestDifference) return;
  largestDifference = difference;
  where = name;
}

}  // namespace cleave
