// Compares results of two computations, such as those of a split model and of the whole one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace cleave {

// The comparison of one kind of result, over all steps. Compares the bits: unlike in a comparison
// of values, -0 differs from 0, and a NaN equals itself.
struct Comparison {
  std::uint64_t values = 0;
  bool equal = true;
  double largestDifference = 0;
  std::string where;  // location of the largest difference
  double differenceSquares = 0, wholeSquares = 0;

  // |split - whole| / |whole|, where split and whole are the vectors of all values.
  double relativeDifference() const {
    if (differenceSquares == 0) return 0;  // at most the signs of zeros differ
    return std::sqrt(differenceSquares / wholeSquares);
  }

  void add(const at::Tensor& split, const at::Tensor& whole, const std::string& name);
  void add(double split, double whole, const std::string& name);
  void note(double difference, const std::string& name);
};

}  // namespace cleave
