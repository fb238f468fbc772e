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
  CHECK(agreementOf({1, 2, 3}, {2, 4, 6}).cosine() == Approx(1));
  CHECK(agreementOf({1, 2, 3}, {2, 4, 6}).lengthRatio() == Approx(0.5));
  CHECK(agreementOf({1, 0}, {0, 1}).cosine() == 0);
  CHECK(agreementOf({-1, 2}, {1, -2}).cosine() == Approx(-1));
  Agreement two = agreementOf({3, 0}, {3, 0});
  two.add(std::vector<float>{0, 4}, std::vector<float>{4, 0});
  CHECK(two.cosine() == Approx(9. / 25));
}

TEST_CASE("the verdict depends on what the codec leaves of what the client has computed") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  using Values = std::vector<float>;
  const auto verdict = [](const Values& received, const Values& computed, const Values& kept,
                          bool mayOverflow = false) {
    return judge(agreementOf(received, computed),
                 kept.empty() ? Agreement() : agreementOf(kept, computed), mayOverflow);
  };
  const Values model = {3, 4};
  CHECK(verdict(model, model, model) == Verdict::equal);
  CHECK(verdict({3, 0}, model, {3, 0}) == Verdict::equal);  // a lossy codec
  CHECK(verdict({3, 0}, model, model) == Verdict::foreign);
  CHECK(verdict({-3, -4}, model, model) == Verdict::foreign);
  CHECK(verdict({4.5F, 6}, model, model) == Verdict::equal);
  CHECK(verdict({9, 12}, model, model) == Verdict::foreign);  // too long
  CHECK(verdict({1, 1.3F}, model, model) == Verdict::foreign);
  // Weights of zeros or NaN, which a server sends to hide what it has done.
  CHECK(verdict(model, {0, 0}, {0, 0}) == Verdict::foreign);
  CHECK(verdict(model, {kNaN, 1}, {}) == Verdict::foreign);
  CHECK(verdict({0, 0}, model, model) == Verdict::foreign);
  CHECK(verdict({kNaN, 1}, model, model) == Verdict::foreign);
  // What an honest server may send.
  CHECK(verdict({0, 0}, model, {0, 0}) == Verdict::none);
  CHECK(verdict({0, 0}, {0, 0}, {0, 0}) == Verdict::none);
  CHECK(verdict({kNaN, 1}, {kNaN, 1}, {}) == Verdict::none);
  CHECK(verdict({kNaN, 1}, model, model, true) == Verdict::none);
  CHECK(verdict({3, 0}, model, {0, 0}) == Verdict::foreign);
}

}  // namespace
}  // namespace cleave::test
