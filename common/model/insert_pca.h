// Principal components of the tensors at a cut. The insert whose encoder and decoder project on the
// first r of them has the smallest mean squared error of all linear inserts of rank r.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/inserts.h"

namespace cleave {

struct PrincipalComponents {
  at::Tensor mean;       // fp64, one per channel or feature
  at::Tensor basis;      // fp64, [d, d]: orthonormal columns, in descending order of variance
  at::Tensor variances;  // fp64, [d]

  // The share of the variance that the first `rank` components leave out.
  double error(std::int64_t rank) const;
  // The smallest rank with at most this error.
  std::int64_t rankFor(double error) const;
  // The parameters of the insert that projects on the first components, under their names with this
  // prefix: E = A^T, e = -A^T m, D = A, d = m.
  std::vector<NamedTensor> weights(const InsertLayers& layers, const std::string& prefix) const;
};

// Sums over tensors, in fp64.
class InsertStatistics {
 public:
  // `kernel`: InsertLayers::kernel. `width`: of a row that the encoder multiplies. Throws
  // UsageError "bad-insert" if it is too wide.
  InsertStatistics(std::int64_t kernel, std::int64_t width);

  // `x`: [samples, …], as the encoder receives it.
  void add(const at::Tensor& x);
  // Throws RunError "non-finite" if a value was not finite.
  PrincipalComponents components() const;

 private:
  std::int64_t kernel_;
  std::int64_t rows_ = 0, positions_ = 0;
  at::Tensor products_;  // sum of the rows' outer products
  at::Tensor rowSum_, channelSum_;
};

// What the encoder's first weight multiplies: [rows, width], fp64. A window's values are ordered by
// channel, row and column, as in a convolution's weight. `kernel`: InsertLayers::kernel.
at::Tensor insertRows(const at::Tensor& x, std::int64_t kernel);
// x minus the mean of each channel or feature.
at::Tensor withoutMean(const at::Tensor& x, const at::Tensor& mean);

}  // namespace cleave
