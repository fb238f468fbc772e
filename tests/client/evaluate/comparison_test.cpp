#include "client/evaluate/comparison.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <limits>

namespace cleave::test {
namespace {

TEST_CASE("equal bits are equal, and all else is a difference with its place") {
  const at::Tensor zeros = at::zeros({3});
  const at::Tensor nan = at::full({3}, std::numeric_limits<float>::quiet_NaN());
  Comparison equal;
  equal.add(zeros, zeros.clone(), "zeros");
  equal.add(nan, nan.clone(), "nan");
  equal.add(0.5, 0.5, "loss");
  CHECK(equal.equal);
  CHECK(equal.values == 7);
  CHECK(equal.relativeDifference() == 0);

  Comparison signs;
  signs.add(zeros.neg(), zeros, "signs");
  CHECK_FALSE(signs.equal);
  CHECK(signs.relativeDifference() == 0);

  Comparison different;
  different.add(3.0, 4.0, "loss");
  different.add(at::full({2}, 1.5), at::full({2}, 1), "weights");
  CHECK_FALSE(different.equal);
  CHECK(different.largestDifference == 1);
  CHECK(different.where == "loss");
  CHECK(different.relativeDifference() == Approx(std::sqrt(1.5 / 18)));

  for (const at::Tensor& wrong : {nan, at::zeros({4})}) {
    Comparison infinite;
    infinite.add(wrong, zeros, "wrong");
    CHECK_FALSE(infinite.equal);
    CHECK(std::isinf(infinite.largestDifference));
  }
}

}  // namespace
}  // namespace cleave::test
