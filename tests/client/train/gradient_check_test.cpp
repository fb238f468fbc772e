// What counts as agreement between the server's tensors and those that the client computes. Whole
// runs: tests/hostile/hijack_test.py.
#include "client/train/gradient_check.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

namespace cleave::test {
namespace {

Agreement agreementOf(const std::vector<float>& received, const std::vector<float>& computed) {
  Agreement agreement;
  agreement.add(received, computed);
  return agreement;
}

TEST_CASE("agreement is the cosine over all micro-batches") {
  CHECK(agreementOf({1, 2, 3}, {2, 4, 6}).value() == Approx(1));
  CHECK(agreementOf({1, 0}, {0, 1}).value() == 0);
  CHECK(agreementOf({-1, 2}, {1, -2}).value() == Approx(-1));
  Agreement two = agreementOf({3, 0}, {3, 0});
  two.add(std::vector<float>{0, 4}, std::vector<float>{4, 0});
  CHECK(two.value() == Approx(9. / 25));
}

TEST_CASE("tensors without a direction say nothing, and received ones without one do not agree") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK(agreementOf({1, 1}, {0, 0}).isUndefined());
  CHECK(agreementOf({1, 1}, {kNaN, 1}).isUndefined());
  for (const std::vector<float>& received : {std::vector<float>{0, 0}, {kNaN, 1}}) {
    const Agreement agreement = agreementOf(received, {1, 1});
    CHECK_FALSE(agreement.isUndefined());
    CHECK_FALSE(agreement.value() >= -1);
  }
}

}  // namespace
}  // namespace cleave::test
