#include "client/codecs/codec_choice.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/error_code.h"

using namespace cleave;

namespace {

constexpr std::size_t kNone = 0, kBlock8 = 1, kBlock4 = 2, kBlock2 = 3;
constexpr double kSamplesBytes = 1e6;  // bytes of each flow's raw tensor

// Four micro-batches with raw tensors of 1 MB per flow; block:bits=8 needs a quarter of the bytes,
// block:bits=4 an eighth, and so on.
CodecCandidates candidates(const std::string& spec = "auto", double codecSeconds = 0.2e-3) {
  CodecCandidates all;
  const std::vector<ParsedCodec> choices = autoCodec(parseCodecSpec(spec)).value().choices;
  for (const Flow flow : Place{}.flows()) {
    for (const ParsedCodec& each : choices) {
      const double bits = each.text == "none"           ? 32
                          : each.text == "block:bits=8" ? 8.5
                          : each.text == "block:bits=4" ? 4.5
                                                        : 2.5;
      const double seconds = each->isIdentity() ? 0 : codecSeconds;
      all[flow].push_back({each, kSamplesBytes, kSamplesBytes * bits / 32, seconds, seconds});
    }
  }
  return all;
}

// Each side computes for 4 * (5 + 5) ms per step. Rates are in bytes per second.
StepCosts costs(double rateUp, double rateDown) {
  StepCosts costs;
  costs.microBatches = 4;
  costs.headForward = costs.headBackward = 5e-3;
  costs.bodies = {{{}, 5e-3, 5e-3, rateUp, rateDown, 1e-4, 0}};
  costs.flows = FlowMap<FlowCosts>(Place{}.flows(), {kSamplesBytes * 8.5 / 32, 0.2e-3, 0.2e-3});
  return costs;
}

CodecChoice all(std::size_t position) { return CodecChoice(Place{}.flows(), position); }

Policy policy() {
  const Schedule& schedule = findSchedule("priority");
  return policyOf(schedule, schedule.defaultInFlight(4));
}

// A chooser whose first measurement equals the simulator's prediction.
CodecChooser chooser(double rateUp, double rateDown,
                     const CodecCandidates& candidates = ::candidates()) {
  const auto rate = [](double known) { return known > 0 ? known : 10e9; };
  const StepCosts truth = costs(rate(rateUp), rate(rateDown));
  return {costs(rateUp, rateDown),
          policy(),
          candidates,
          all(kBlock8),
          {simulateStep(truth, policy()).seconds, 0}};
}

// The choice after trials that take as long as predicted.
CodecChoice best(double rateUp, double rateDown,
                 const CodecCandidates& candidates = ::candidates()) {
  CodecChooser one = chooser(rateUp, rateDown, candidates);
  int trials = 0;
  while (const auto trial = one.nextTrial()) {
    one.measured(trial->choice, {trial->seconds, 0});
    REQUIRE(++trials <= 3);
  }
  return one.best();
}

TEST_CASE("on a fast link a lossless codec is chosen") { CHECK(best(10e9, 10e9) == all(kNone)); }

TEST_CASE("a slower link gets a lossier codec, but no lossier than necessary") {
  CHECK(best(120e6, 120e6) != all(kNone));
  CHECK(best(120e6, 120e6).at(activationAt(0)) <= kBlock8);
  CHECK(best(1e6, 1e6) == all(kBlock4));
  double loss = 0;
  for (const double rate : {10e9, 1e9, 300e6, 120e6, 60e6, 10e6, 1e6}) {
    double own = 0;
    for (const auto& [flow, rung] : best(rate, rate)) own += static_cast<double>(rung);
    INFO(rate);
    CHECK(own >= loss);
    loss = own;
  }
}

TEST_CASE("block:bits=8 is chosen if the link is no longer the bottleneck with it") {
  // With block:bits=8, 2.1 MB in each direction take 4 ms of a step that computes for about 50 ms;
  // raw tensors take 16 ms.
  for (const auto& [flow, rung] : best(500e6, 500e6)) CHECK(rung <= kBlock8);
  CHECK(best(500e6, 500e6) != all(kNone));
}

TEST_CASE("auto goes below block:bits=4 only if configured") {
  CHECK(best(1e4, 1e4) == all(kBlock4));
  CHECK(best(1e4, 1e4, candidates("auto:min_bits=2")) == all(kBlock2));
  CHECK(best(1e4, 1e4, candidates("auto:min_bits=8")) == all(kBlock8));
}

TEST_CASE("each flow has its own codec: only flows of the slow direction get a lossier one") {
  const CodecChoice choice = best(5e6, 10e9);
  for (const Flow flow : {activationAt(0), gradientAt(1)}) {
    CHECK(choice.at(flow) == kBlock4);
  }
  for (const Flow flow : {activationAt(1), gradientAt(0)}) {
    CHECK(choice.at(flow) == kNone);
  }
}

TEST_CASE("a flow with a given codec keeps it") {
  CodecCandidates some = candidates();
  some[gradientAt(0)] = {{{"bf16"}, kSamplesBytes, kSamplesBytes / 2, 0, 0}};
  CodecChoice start = all(kBlock8);
  start[gradientAt(0)] = 0;
  const CodecChooser one(costs(1e6, 10e9), policy(), some, start, {1, 0});
  CHECK(one.best().at(gradientAt(0)) == 0);
  CHECK(one.nextTrial()->choice.at(gradientAt(0)) == 0);
  CHECK(one.best().at(activationAt(0)) == kBlock4);
}

TEST_CASE("a codec that takes longer than it saves on the link is not chosen") {
  CHECK(best(200e6, 200e6, candidates("auto", 50e-3)) == all(kNone));
}

TEST_CASE("measurements take precedence over predictions") {
  CodecChooser one = chooser(10e9, 10e9);
  const auto trial = one.nextTrial();
  REQUIRE(trial);
  CHECK(trial->choice == all(kNone));
  // The trial measures twice the predicted time.
  one.measured(all(kNone), {2 * trial->seconds, 0});
  CHECK(one.best() != all(kNone));
}

TEST_CASE("a codec slower than predicted on all flows is expected to be slower on some") {
  const auto losesMore = [](const CodecChoice& choice) {
    return std::any_of(choice.begin(), choice.end(),
                       [](const auto& flow) { return flow.second > kBlock8; });
  };
  CodecChooser one = chooser(50e6, 50e6);
  REQUIRE(losesMore(one.best()));
  one.measured(all(kBlock4), {1, 0});  // far longer than any step of this test
  CHECK_FALSE(losesMore(one.best()));
}

TEST_CASE("a codec with fewer bits is not tried if the link is not the bottleneck") {
  // Noise makes every trial appear slower than the first.
  CodecChooser one = chooser(10e9, 10e9);
  double slower = 1.1;
  while (const auto trial = one.nextTrial()) {
    for (const auto& [flow, rung] : trial->choice) CHECK(rung <= kBlock8);
    one.measured(trial->choice, {trial->seconds * slower, 0});
    slower += 0.1;
  }
  for (const auto& [flow, rung] : one.best()) CHECK(rung <= kBlock8);
}

TEST_CASE("if measurements are uncertain, the less lossy codec is chosen") {
  CodecChooser one = chooser(10e9, 10e9);
  const double start = one.nextTrial()->seconds;
  one.measured(all(kNone), {1.08 * start, 0});
  CHECK(one.best() == all(kBlock8));
  one.measured(all(kNone), {1.08 * start, 0.06});
  CHECK(one.best() == all(kNone));
}

TEST_CASE("an unmeasured combination is chosen only if it is predicted to be much faster") {
  // block:bits=4 makes the step a little faster.
  const CodecChooser little = chooser(120e6, 120e6);
  CHECK(little.best() == all(kBlock8));
  CHECK(little.nextTrial()->choice != all(kBlock8));
  CHECK(chooser(5e6, 5e6).best() == all(kBlock4));
}

TEST_CASE("an unusable choice is excluded") {
  CodecChooser one = chooser(10e9, 10e9);
  one.exclude(all(kNone));
  CHECK(one.best() != all(kNone));
}

TEST_CASE("a direction without a measured rate counts as fast") {
  const CodecChoice choice = best(5e6, 0);
  CHECK(choice.at(activationAt(0)) == kBlock4);
  const CodecChooser one = chooser(0, 0);
  REQUIRE(one.nextTrial());
  CHECK(one.nextTrial()->choice == all(kNone));
}

TEST_CASE("tensors larger than the measured ones require a new measurement, smaller ones do not") {
  CodecChooser one = chooser(10e9, 10e9);
  CHECK(one.best() == all(kBlock8));
  REQUIRE(one.nextTrial());
  one.measured(one.nextTrial()->choice, {one.nextTrial()->seconds, 0});
  CHECK(one.best() == all(kNone));
  CHECK(chooser(1e6, 1e6).best() == all(kBlock4));
}

TEST_CASE("a lower rate that a later trial measures replaces the first") {
  CodecChooser one = chooser(10e9, 10e9);
  one.measured(all(kNone), {one.nextTrial()->seconds, 0});
  REQUIRE(one.best() == all(kNone));
  one.limitRates(1e6, 1e6);
  CHECK(one.best() == all(kBlock4));
  one.limitRates(10e9, 10e9);
  CHECK(one.best() == all(kBlock4));
}

// The choice within a budget, after trials that take as long as predicted.
struct Budgeted {
  CodecChoice choice;
  bool isWithinBudget;
};
Budgeted within(const AutoBudget& budget, double rate, const CodecCandidates& some,
                const CodecChoice& start = all(kBlock8)) {
  const double seconds = simulateStep(costs(rate, rate), policy()).seconds;
  CodecChooser one(costs(rate, rate), policy(), some, start, {seconds, 0}, budget);
  while (const auto trial = one.nextTrial()) one.measured(trial->choice, {trial->seconds, 0});
  const CodecChoice best = one.best();
  return {best, one.isWithinBudget(best, one.timeOf(best).seconds)};
}

TEST_CASE("a budget of bytes excludes larger codecs, even on a fast link") {
  CHECK(within({1, 0}, 10e9, candidates()).choice == all(kNone));
  const Budgeted half = within({0.65, 0}, 10e9, candidates());
  CHECK(half.isWithinBudget);
  int none = 0;
  for (const auto& [flow, rung] : half.choice) none += rung == kNone ? 1 : 0;
  CHECK(none == 2);  // one direction: (1 + 0.27) / 2 of the bytes
  CHECK(within({0.3, 0}, 10e9, candidates()).choice == all(kBlock8));
  const Budgeted small = within({0.15, 0}, 10e9, candidates());
  CHECK(small.choice == all(kBlock4));
  CHECK(small.isWithinBudget);
  CHECK(within({0.08, 0}, 10e9, candidates("auto:min_bits=2")).choice == all(kBlock2));
}

TEST_CASE("without a budget, tensors whose headers are large are within it") {
  CodecCandidates some = candidates();
  for (auto& [flow, choices] : some) {
    for (CodecCandidate& each : choices) each.bytes += 0.05 * each.rawBytes;
  }
  const Budgeted result = within({}, 10e9, some);
  CHECK(result.choice == all(kNone));
  CHECK(result.isWithinBudget);
}

TEST_CASE("a budget of bytes that given codecs exceed leaves the smallest choice") {
  CodecCandidates some = candidates();
  some[gradientAt(0)] = {{{"none"}, kSamplesBytes, kSamplesBytes, 0, 0}};
  CodecChoice start = all(kBlock8);
  start[gradientAt(0)] = 0;
  const Budgeted result = within({0.15, 0}, 10e9, some, start);
  CHECK(result.choice.at(activationAt(0)) == kBlock4);
  CHECK_FALSE(result.isWithinBudget);
}

TEST_CASE("with a budget of seconds, the least lossy codecs that keep it are chosen") {
  constexpr double kRate = 20e6;
  const CodecChoice fastest = within({}, kRate, candidates()).choice;
  CHECK(fastest == all(kBlock4));
  StepCosts withEight = costs(kRate, kRate);
  const double eight = simulateStep(withEight, policy()).seconds;
  const Budgeted relaxed = within({1, 1.01 * eight}, kRate, candidates());
  CHECK(relaxed.choice == all(kBlock8));
  CHECK(relaxed.isWithinBudget);
  CHECK(within({1, 100}, kRate, candidates()).choice == all(kNone));
  const Budgeted tooShort = within({1, 1e-3}, kRate, candidates());
  CHECK(tooShort.choice == fastest);
  CHECK_FALSE(tooShort.isWithinBudget);
}

TEST_CASE("`auto` and its parameters are parsed, and no other spec counts as auto") {
  using List = std::vector<std::string>;
  const auto choices = [](const char* spec) {
    const AutoCodec parsed = autoCodec(parseCodecSpec(spec)).value();
    List texts;
    for (const ParsedCodec& each : parsed.choices) texts.push_back(each.text);
    return texts;
  };
  CHECK(choices("auto") == List{"none", "block:bits=8", "block:bits=4"});
  CHECK(choices("auto:min_bits=4") == choices("auto"));
  CHECK(choices("auto:min_bits=5") == List{"none", "block:bits=8"});
  const List all{"none", "block:bits=8", "block:bits=4", "block:bits=2"};
  CHECK(choices("auto:min_bits=2") == all);
  CHECK_FALSE(autoCodec(parseCodecSpec("none")));
  CHECK_FALSE(autoCodec(parseCodecSpec("block:bits=8")));
  CHECK(autoCodec(parseCodecSpec("auto")).value().start.text == "block:bits=8");
  CHECK(autoCodec(parseCodecSpec("auto:max_ratio=0.2")).value().start.text == "block:bits=4");
  CHECK(choices("auto:max_ratio=0.2") == choices("auto"));
  CHECK(autoCodec(parseCodecSpec("auto:max_ratio=0.1")).value().start.text == "block:bits=2");
  CHECK(choices("auto:max_ratio=0.1") == all);
  CHECK(autoCodec(parseCodecSpec("auto:max_step=0.5")).value().budget.maxStepSeconds == 0.5);
  for (const char* wrong :
       {"auto:min_bits=9", "auto:bits=4", "auto:max_ratio=0.05", "auto:max_ratio=0.1,min_bits=4",
        "auto:max_ratio=2", "auto:max_step=-1"}) {
    INFO(wrong);
    CHECK(errorCode([&] { autoCodec(parseCodecSpec(wrong)); }) == "bad-codec-spec");
  }
}

TEST_CASE("the budgets of several flows are combined") {
  const AutoBudget both = AutoBudget{0.5, 0}.stricter({0.2, 3}).stricter({1, 2});
  CHECK(both.maxRatio == 0.2);
  CHECK(both.maxStepSeconds == 2);
}

}  // namespace
