#include "client/codecs/quality_watch.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace cleave;

namespace {

constexpr QualitySettings kSettings{.every = 10, .maxLossIncrease = 0.05, .minSnr = 3};

QualityCheck losses(std::uint64_t step, double without, double with) {
  return {step, without, with};
}

TEST_CASE("a check is due every N steps until nothing is left to check") {
  QualityWatch watch(kSettings, true);
  CHECK_FALSE(watch.isDue(0));
  CHECK_FALSE(watch.isDue(9));
  CHECK(watch.isDue(10));
  CHECK_FALSE(QualityWatch({}, true).isDue(10));
  CHECK(watch.summary().is_null());

  CHECK(watch.check(losses(10, 1.0, 1.2)));
  CHECK(watch.level() == CodecLevel::eight);
  CHECK(watch.isDue(20));
  CHECK(watch.check(losses(20, 1.0, 1.2)));
  CHECK(watch.level() == CodecLevel::raw);
  CHECK_FALSE(watch.isDue(30));
}

TEST_CASE("without a level of eight bits, the first fallback sends tensors without a codec") {
  QualityWatch watch(kSettings, false);
  CHECK_THAT(watch.check(losses(10, 1.0, 1.2)).value(),
             Catch::Contains("no codec from step 11") && Catch::Contains("1.2000"));
  CHECK(watch.level() == CodecLevel::raw);
}

TEST_CASE("the loss may increase by the configured share, and may decrease") {
  QualityWatch watch(kSettings, true);
  CHECK_FALSE(watch.check(losses(10, 2.0, 2.09)));
  CHECK_FALSE(watch.check(losses(20, 2.0, 1.0)));
  CHECK_FALSE(watch.check(losses(30, 2.0, 2.0)));
  CHECK(watch.level() == CodecLevel::own);
  CHECK(watch.summary().at("checks") == 3);
  CHECK(watch.summary().at("highest_loss_increase") == Approx(0.045));
  CHECK(watch.check(losses(40, 2.0, 2.11)));
}

TEST_CASE("small losses are compared as if they were 0.1") {
  QualityWatch watch(kSettings, true);
  CHECK_FALSE(watch.check(losses(10, 1e-6, 1e-3)));
  CHECK(watch.check(losses(20, 1e-6, 6e-3)));
}

TEST_CASE("a loss that is not finite only with the codecs is a fault") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK(QualityWatch(kSettings, true).check(losses(10, 1.0, kNan)));
  CHECK_FALSE(QualityWatch(kSettings, true).check(losses(10, kNan, kNan)));
  CHECK_FALSE(QualityWatch(kSettings, true).check({10, std::nullopt, std::nullopt}));
}

TEST_CASE("a tensor with a low SNR is a fault, once") {
  QualityWatch watch(kSettings, true);
  watch.measuredSnr(2.9);
  CHECK_THAT(watch.check(losses(10, 1, 1)).value(), Catch::Contains("2.9 dB"));
  CHECK_FALSE(watch.check(losses(20, 1, 1)));
  watch.measuredSnr(3.1);
  CHECK_FALSE(watch.check(losses(30, 1, 1)));
  watch.measuredSnr(std::nullopt);
  CHECK_FALSE(watch.check(losses(40, 1, 1)));
}

TEST_CASE("a restored watch continues as the saved one") {
  QualityWatch first(kSettings, true);
  REQUIRE(first.check(losses(10, 1, 2)));
  first.measuredSnr(1.5);
  QualityWatch second(kSettings, true);
  second.restore(first.save());
  CHECK(second.level() == CodecLevel::eight);
  CHECK(second.summary() == first.summary());
  CHECK(second.check(losses(20, 1, 1)) == first.check(losses(20, 1, 1)));
  CHECK(second.level() == CodecLevel::raw);
  CHECK(second.save() == first.save());
}

}  // namespace
