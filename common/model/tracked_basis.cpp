#include "common/model/tracked_basis.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/core/error.h"

namespace cleave {
namespace {

constexpr const char* kHint = "use the same version of Cleave on both sides";

// An orthonormal basis of the columns' span. The signs of a QR decomposition are arbitrary: those
// with a positive diagonal of R make it unique, so that the basis changes as little as its span.
at::Tensor orthonormal(const at::Tensor& columns) {
  const auto [q, r] = at::linalg_qr(columns);
  const at::Tensor diagonal = r.diagonal();
  const at::Tensor ones = at::ones_like(diagonal);
  return q.mul(at::where(diagonal.lt(0), ones.neg(), ones));
}

// Subspace iteration from the current basis: it converges to the first principal components.
at::Tensor nextBasis(const at::Tensor& weight, const at::Tensor& covariance) {
  constexpr int kIterations = 4;
  const at::Tensor sum = covariance.to(at::kCPU, at::kDouble);
  if (!std::isfinite(sum.sum().item<double>())) {
    throw RunError("non-finite", "the covariance of an insert contains NaN or infinity",
                   "lower train.learning_rate.peak");
  }
  at::Tensor basis = weight.flatten(1).t().to(at::kCPU, at::kDouble);
  for (int k = 0; k < kIterations; ++k) basis = orthonormal(sum.matmul(basis));
  return basis.t().contiguous().to(at::kHalf);
}

at::Tensor valuesOf(const InsertBasis& basis) {
  return at::from_blob(const_cast<char*>(basis.values.data()),
                       {static_cast<std::int64_t>(basis.values.size() / sizeof(at::Half))},
                       at::kHalf);
}

template <typename Bases>
auto* find(Bases& bases, std::uint32_t cut) {
  const auto found =
      std::ranges::find_if(bases, [&](const InsertBasis& each) { return each.cut == cut; });
  return found == bases.end() ? nullptr : &*found;
}

[[noreturn]] void refuse(std::uint32_t cut, const std::string& what) {
  throw RunError("bad-tensor", "the basis of the insert at cut " + std::to_string(cut) + " " + what,
                 kHint);
}

}  // namespace

void TrackedBases::add(const TrackedBasis& basis, const at::Tensor& weight,
                       const at::Tensor& covariance, const at::Tensor& average) {
  rows_.push_back({basis, weight, covariance, average});
}

std::vector<InsertBasis> TrackedBases::next(std::uint64_t step) {
  const at::NoGradGuard noGrad;
  own_.clear();
  for (const Row& row : rows_) {
    if (!row.basis.isOfEncoder || step % row.basis.everySteps != 0) continue;
    const at::Tensor values = nextBasis(row.weight, row.covariance);
    own_.push_back({row.basis.cut, std::string(static_cast<const char*>(values.const_data_ptr()),
                                               values.nbytes())});
  }
  return own_;
}

void TrackedBases::check(const StepDecision& decision) const {
  for (const Row& row : rows_) {
    if (row.basis.isOfEncoder) continue;
    const InsertBasis* const given = find(decision.bases, row.basis.cut);
    const bool isDue = decision.step % row.basis.everySteps == 0;
    if (isDue != (given != nullptr))
      refuse(row.basis.cut, isDue ? "is missing" : "comes too early");
    if (given == nullptr) continue;
    const auto size = static_cast<std::size_t>(row.weight.numel()) * sizeof(at::Half);
    if (given->values.size() != size) {
      refuse(row.basis.cut, "has " + std::to_string(given->values.size()) + " bytes instead of " +
                                std::to_string(size));
    }
    // Orthonormal rows, rounded to fp16. NaN is not at most the limit.
    constexpr double kLimit = 0.01;
    const at::Tensor rows =
        valuesOf(*given).view({row.weight.size(0), -1}).to(at::kCPU, at::kDouble);
    const at::Tensor products = rows.matmul(rows.t());
    const at::Tensor error = products.sub(at::eye(rows.size(0), at::kDouble)).abs().max();
    if (!(error.item<double>() <= kLimit)) refuse(row.basis.cut, "is not orthonormal");
  }
}

void TrackedBases::refuseOthers(const StepDecision& decision) const {
  for (const InsertBasis& given : decision.bases) {
    const bool isNeeded = std::ranges::any_of(rows_, [&](const Row& row) {
      return !row.basis.isOfEncoder && row.basis.cut == given.cut;
    });
    if (!isNeeded) refuse(given.cut, "belongs to no decoder of this part");
  }
}

void TrackedBases::install(const StepDecision& decision) {
  const at::NoGradGuard noGrad;
  const std::vector<InsertBasis> own = std::exchange(own_, {});
  if (!decision.apply) return;
  for (const Row& row : rows_) {
    const InsertBasis* const basis =
        find(row.basis.isOfEncoder ? own : decision.bases, row.basis.cut);
    if (basis == nullptr) continue;
    for (const at::Tensor& target : {row.weight, row.average}) {
      if (target.defined()) target.copy_(valuesOf(*basis).view(target.sizes()));
    }
  }
}

at::Tensor covarianceOf(const at::Tensor& rows) {
  return rows.t().matmul(rows).div(static_cast<double>(rows.size(0))).to(at::kFloat);
}

}  // namespace cleave
