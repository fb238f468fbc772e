// The decision on a step: clipping, parameter groups, and the loss scale.
#include "client/train/step_decider.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

const GradientReport kNone{0, true};
const GradientReport kInfinite{std::numeric_limits<double>::infinity(), false};

std::unique_ptr<Dataset> someData() {
  SyntheticOptions options;
  options.shape = {2};
  options.size = 64;
  return makeSynthetic(options);
}

ClientSettings settings() {
  ClientSettings settings;
  settings.learningRate.schedule = "constant";
  settings.learningRate.peak = 0.5;
  return settings;
}

TEST_CASE("the norm covers all gradients, and clipping reduces it to the limit") {
  ClientSettings options = settings();
  options.clipNorm = 1;
  options.groupRates = {10, 0};
  StepDecider decider(options, someData()->size());
  const StepDecision decision = decider.decide(1, {9, true}, {{5, true}, {7, true}}, {4, true});
  CHECK(decider.norm() == 5);
  CHECK(decision.clipFactor == Approx(0.2));
  CHECK(decision.apply);
  CHECK(decision.lossScale == 1);
  CHECK(decision.learningRates == std::vector<double>{0.5, 5, 0});
  CHECK(decider.decide(2, {0.25, true}, {kNone}, kNone).clipFactor == 1);
  CHECK(errorCode([&] { decider.decide(3, kNone, {kInfinite}, kNone); }) == "non-finite");
}

TEST_CASE("with fp16, a step whose gradients overflow is skipped, and the loss scale is halved") {
  ClientSettings options = settings();
  options.bodyPrecision = Precision::fp16;
  options.clipNorm = 1;
  StepDecider decider(options, someData()->size());
  CHECK(decider.lossScale() == 65536);
  const StepDecision skipped = decider.decide(1, kNone, {kInfinite}, kNone);
  CHECK_FALSE(skipped.apply);
  CHECK(skipped.lossScale == 65536);
  CHECK(skipped.clipFactor == 1);
  CHECK(decider.lossScale() == 32768);
  CHECK(decider.skipped() == 1);

  // The gradients are scaled by 32768.
  const StepDecision applied = decider.decide(2, {4.0 * 32768 * 32768, true}, {kNone}, kNone);
  CHECK(applied.apply);
  CHECK(applied.lossScale == 32768);
  CHECK(decider.norm() == 2);
  CHECK(applied.clipFactor == Approx(0.5));

  for (std::uint64_t step = 3; step <= 2001; ++step) decider.decide(step, kNone, {kNone}, kNone);
  CHECK(decider.lossScale() == 65536);
}

TEST_CASE("with fp16 and precision.scale_loss off, the loss is not scaled") {
  ClientSettings options = settings();
  options.clientPrecision = options.bodyPrecision = Precision::fp16;
  options.mayScaleLoss = false;
  StepDecider decider(options, someData()->size());
  CHECK(decider.decide(1, kNone, {kNone}, kNone).lossScale == 1);
  CHECK(errorCode([&] { decider.decide(2, kNone, {kInfinite}, kNone); }) == "non-finite");
}

TEST_CASE(
    "the loss scale continues after a restart, and the run ends if no scale avoids overflows") {
  ClientSettings options = settings();
  options.clientPrecision = Precision::fp16;
  StepDecider decider(options, someData()->size());
  for (std::uint64_t step = 1; step <= 3; ++step) decider.decide(step, kInfinite, {kNone}, kNone);
  StepDecider restarted(options, someData()->size());
  restarted.restore(nlohmann::json::parse(decider.save().dump()));
  CHECK(restarted.lossScale() == decider.lossScale());
  CHECK(restarted.skipped() == 3);
  const auto overflow = [&] {
    for (std::uint64_t step = 4; step < 100; ++step)
      restarted.decide(step, kInfinite, {kNone}, kNone);
  };
  CHECK(errorCode(overflow) == "non-finite");
}

}  // namespace
}  // namespace cleave::test
