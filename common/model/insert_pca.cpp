#include "common/model/insert_pca.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace cleave {
namespace {

// The features of all positions: [positions, features].
at::Tensor positionsOf(const at::Tensor& x) {
  const at::Tensor last = x.dim() == 4 ? x.permute({0, 2, 3, 1}) : x;
  return last.reshape({-1, last.size(-1)}).to(at::kDouble);
}

}  // namespace

double PrincipalComponents::error(std::int64_t rank) const {
  const double all = variances.sum().item<double>();
  return all > 0 ? variances.slice(0, rank).sum().item<double>() / all : 0;
}

std::int64_t PrincipalComponents::rankFor(double limit) const {
  std::int64_t rank = 1;
  while (rank < variances.size(0) && error(rank) > limit) ++rank;
  return rank;
}

std::vector<NamedTensor> PrincipalComponents::weights(const InsertLayers& layers,
                                                      const std::string& prefix) const {
  const Shape &encoder = layers.encoder.tensors.front().shape,
              &decoder = layers.decoder.tensors.front().shape;
  const at::Tensor first = basis.narrow(1, 0, encoder.front()).contiguous();
  const at::Tensor rows = first.t().contiguous();
  const at::Tensor offset = mean.repeat_interleave(basis.size(0) / mean.size(0));
  if (layers.momentum > 0) {  // a tracked basis: the encoder has mean and covariance
    const at::Tensor weight = rows.view(encoder).to(at::kFloat);
    const at::Tensor covariance = basis.mul(variances).matmul(basis.t());
    return {{prefix + "encoder.weight", weight},
            {prefix + "encoder.mean", mean.to(at::kFloat)},
            {prefix + "encoder.covariance", covariance.to(at::kFloat)},
            {prefix + "decoder.weight", weight},
            {prefix + "decoder.bias", mean.to(at::kFloat)}};
  }
  const at::Tensor bias = rows.matmul(offset).neg();
  // The weight of a transposed convolution has the inputs first.
  const at::Tensor& back = layers.kernel > 0 ? rows : first;
  return {{prefix + "encoder.weight", rows.view(encoder).to(at::kFloat)},
          {prefix + "encoder.bias", bias.to(at::kFloat)},
          {prefix + "decoder.weight", back.view(decoder).to(at::kFloat)},
          {prefix + "decoder.bias", mean.to(at::kFloat)}};
}

InsertStatistics::InsertStatistics(std::int64_t kernel, std::int64_t width) : kernel_(kernel) {
  constexpr std::int64_t kMaxWidth = 1 << 14;  // a matrix of 2 GiB
  if (width > kMaxWidth) {
    throw badInsert("principal components of " + std::to_string(width) +
                        " values are too many; at most " + std::to_string(kMaxWidth),
                    "use a smaller kernel", "kind");
  }
  products_ = at::zeros({width, width}, at::kDouble);
  rowSum_ = at::zeros({width}, at::kDouble);
  channelSum_ = at::zeros({width / std::max<std::int64_t>(1, kernel * kernel)}, at::kDouble);
}

void InsertStatistics::add(const at::Tensor& x) {
  const at::NoGradGuard noGrad;
  const at::Tensor rows = insertRows(x, kernel_), positions = positionsOf(x);
  products_.addmm_(rows.t(), rows);
  rowSum_.add_(rows.sum(0));
  channelSum_.add_(positions.sum(0));
  rows_ += rows.size(0);
  positions_ += positions.size(0);
}

PrincipalComponents InsertStatistics::components() const {
  PrincipalComponents result;
  result.mean = channelSum_.div(static_cast<double>(std::max<std::int64_t>(1, positions_)));
  if (!std::isfinite(products_.sum().item<double>())) {
    throw RunError("non-finite", "a tensor at the cut of an insert contains NaN or infinity",
                   "correct the data or the weights");
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(1, rows_));
  const at::Tensor mean = result.mean.repeat_interleave(rowSum_.size(0) / result.mean.size(0));
  const at::Tensor cross = at::outer(mean, rowSum_.div(count));
  const at::Tensor covariance =
      products_.div(count).sub(cross).sub(cross.t()).add(at::outer(mean, mean));
  const auto [values, vectors] = at::linalg_eigh(covariance);  // in ascending order
  result.variances = values.flip(0).clamp_min(0);
  result.basis = vectors.flip(1).contiguous();
  return result;
}

at::Tensor insertRows(const at::Tensor& x, std::int64_t kernel) {
  if (kernel == 0) return positionsOf(x);
  const std::int64_t below = (kernel - x.size(2) % kernel) % kernel;
  const std::int64_t right = (kernel - x.size(3) % kernel) % kernel;
  const at::Tensor padded = at::constant_pad_nd(x, {0, right, 0, below}, 0);
  const at::Tensor windows =
      at::im2col(padded, {kernel, kernel}, {1, 1}, {0, 0}, {kernel, kernel}).transpose(1, 2);
  return windows.reshape({-1, windows.size(2)}).to(at::kDouble);
}

at::Tensor withoutMean(const at::Tensor& x, const at::Tensor& mean) {
  const at::Tensor own = mean.to(x.scalar_type());
  return x.sub(x.dim() == 4 ? own.view({1, -1, 1, 1}) : own);
}

}  // namespace cleave
