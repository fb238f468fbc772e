#include "client/config/learning_rate.h"

#include <catch2/catch.hpp>

namespace cleave::test {
namespace {

LearningRateOptions optionsFor(const std::string& schedule, std::uint64_t warmup,
                               std::uint64_t total) {
  return {.schedule = schedule, .peak = 0.4, .warmupSteps = warmup, .totalSteps = total};
}

TEST_CASE("every schedule warms up linearly and then starts at the peak") {
  for (const LearningRateRow& row : learningRateTable()) {
    const LearningRateOptions options = optionsFor(std::string(row.name), 4, 100);
    CAPTURE(row.name);
    CHECK(learningRate(options, 1) == Approx(0.1));
    CHECK(learningRate(options, 2) == Approx(0.2));
    CHECK(learningRate(options, 4) == 0.4);
    CHECK(learningRate(options, 5) == 0.4);
  }
}

TEST_CASE("without a warm-up every schedule starts at the peak and never leaves [0, peak]") {
  for (const LearningRateRow& row : learningRateTable()) {
    const LearningRateOptions options = optionsFor(std::string(row.name), 0, 10);
    CAPTURE(row.name);
    CHECK(learningRate(options, 1) == 0.4);
    for (std::uint64_t step = 1; step <= 20; ++step) {
      CHECK(learningRate(options, step) >= 0);
      CHECK(learningRate(options, step) <= 0.4);
    }
  }
}

TEST_CASE("constant stays at the peak") {
  const LearningRateOptions options = optionsFor("constant", 2, 10);
  for (std::uint64_t step = 2; step <= 12; ++step) CHECK(learningRate(options, step) == 0.4);
}

TEST_CASE("cosine falls by half a cosine, and stays at 0 beyond the last step") {
  const LearningRateOptions options = optionsFor("cosine", 2, 10);
  CHECK(learningRate(options, 5) == Approx(0.4 * 0.8535533906));  // after 25 % of the decay
  CHECK(learningRate(options, 7) == Approx(0.2));                 // after 50 % of the decay
  for (std::uint64_t step = 4; step <= 10; ++step) {
    CHECK(learningRate(options, step) < learningRate(options, step - 1));
  }
  CHECK(learningRate(options, 11) == Approx(0).margin(1e-15));
  CHECK(learningRate(options, 1000) == Approx(0).margin(1e-15));
}

TEST_CASE("linear and polynomial fall to the end value") {
  LearningRateOptions options = optionsFor("linear", 2, 10);
  CHECK(learningRate(options, 3) == 0.4);
  CHECK(learningRate(options, 7) == Approx(0.2));
  CHECK(learningRate(options, 11) == 0);
  options.schedule = "polynomial";
  CHECK(learningRate(options, 7) == Approx(0.2));  // with power 1, polynomial is linear
  options.power = 2;
  CHECK(learningRate(options, 7) == Approx(0.1));
  options.end = 0.1;
  CHECK(learningRate(options, 7) == Approx(0.1 + 0.3 / 4));
  CHECK(learningRate(options, 11) == Approx(0.1));
  CHECK(learningRate(options, 1000) == Approx(0.1));
  options.schedule = "cosine";
  CHECK(learningRate(options, 11) == Approx(0.1));
}

TEST_CASE("a warm-up longer than the run is cut off by the run's end") {
  const LearningRateOptions options = optionsFor("cosine", 20, 10);
  CHECK(learningRate(options, 10) == Approx(0.2));
  CHECK(learningRate(options, 20) == 0.4);
  CHECK(learningRate(options, 21) == 0.4);
}

TEST_CASE("an unknown learning-rate schedule is refused with the nearest known one") {
  try {
    learningRate(optionsFor("cosin", 0, 10), 1);
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.code() == "unknown-learning-rate");
    CHECK_THAT(error.what(), Catch::Contains("'cosin'"));
    CHECK_THAT(error.hint(), Catch::Contains("did you mean cosine?"));
    CHECK_THAT(error.hint(), Catch::Contains("constant, cosine"));
  }
}

}  // namespace
}  // namespace cleave::test
