#include "client/codecs/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compression/registry.h"

namespace cleave {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A choice that was not measured must be predicted to be faster by this share.
constexpr double kUnmeasured = 0.15;
// The simulator assumes that each codec thread has its own core. If there is no spare core, codecs
// slow down the other computation, so `none` is faster than predicted by up to this share.
constexpr double kNoneIsFaster = 0.12;
// The predicted step time of one codec for all flows may be too high by up to this share.
constexpr double kPredictionError = 0.02;
// The assumed rate, in bytes per second, of a link whose rate could not be measured.
constexpr double kFastRate = 1e10;
// A ratio may exceed the limit by this factor, because tensors have headers.
constexpr double kRounding = 1.01;
// More micro-batches hardly change a prediction, but take longer to simulate.
constexpr std::uint32_t kMaxSimulated = 64;

struct Rung {
  const char* spec;
  int bits;
};
constexpr Rung kRungs[] = {
    {"none", 32}, {"block:bits=8", 8}, {"block:bits=4", 4}, {"block:bits=2", 2}};
constexpr int kStartBits = 8;
// The bytes of `block` with this many bits, relative to fp32.
double ratioOf(int bits) { return bits == 32 ? 1 : (bits + 0.5) / 32; }

}  // namespace

double lossOf(std::size_t rung) { return std::exp2(static_cast<double>(rung)) - 1; }

AutoBudget AutoBudget::stricter(const AutoBudget& other) const {
  const double seconds = std::max(maxStepSeconds, other.maxStepSeconds);
  const bool areBoth = maxStepSeconds > 0 && other.maxStepSeconds > 0;
  return {std::min(maxRatio, other.maxRatio),
          areBoth ? std::min(maxStepSeconds, other.maxStepSeconds) : seconds};
}

std::optional<AutoCodec> autoCodec(const CodecSpec& spec) {
  constexpr int kDefaultBits = 4, kFewestBits = 2;
  constexpr double kMaxSeconds = 1e6;
  if (spec.name != "auto") return std::nullopt;
  CodecParameters parameters(spec);
  AutoCodec result;
  result.budget.maxRatio = parameters.number("max_ratio", 0, 1, 1);
  result.budget.maxStepSeconds = parameters.number("max_step", 0, kMaxSeconds, 0);
  // With a small budget, min_bits may be omitted.
  const bool isSmall = result.budget.maxRatio < ratioOf(kDefaultBits);
  const int bits =
      parameters.integer("min_bits", kFewestBits, 8, isSmall ? kFewestBits : kDefaultBits);
  parameters.finish();
  for (const Rung& rung : kRungs) {
    if (rung.bits < bits) continue;
    result.choices.push_back(parseCodec(rung.spec));
    const bool fits = ratioOf(rung.bits) <= result.budget.maxRatio;
    if (rung.bits <= kStartBits && fits && !result.start.codec) {
      result.start = result.choices.back();
    }
  }
  if (result.start.codec) return result;
  throw UsageError("bad-codec-spec",
                   "codec " + toString(spec) + ": even block:bits=" + std::to_string(bits) +
                       " has " + shortestText(ratioOf(bits)) + " of the bytes",
                   bits > kFewestBits
                       ? "raise max_ratio, or lower min_bits"
                       : "raise max_ratio, or make the tensors smaller with learned inserts");
}

CodecChooser::CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
                           const CodecChoice& start, StepTime time, const AutoBudget& budget)
    : costs_(costs),
      policy_(std::move(policy)),
      candidates_(std::move(candidates)),
      start_(start),
      budget_(budget) {
  if (costs_.body().rateUp <= 0) costs_.body().rateUp = kFastRate;
  if (costs_.body().rateDown <= 0) costs_.body().rateDown = kFastRate;
  for (std::size_t up = 0; up < rungs(true); ++up) {
    for (std::size_t down = 0; down < rungs(false); ++down) {
      Option option;
      for (const auto& [flow, some] : candidates_) {
        option.choice[flow] = std::min(isUp(flow) ? up : down, some.size() - 1);
      }
      option.loss = lossOf(up) + lossOf(down);
      if (up == down || rungs(true) == 1 || rungs(false) == 1) option.uniform = std::max(up, down);
      options_.push_back(option);
    }
  }
  std::stable_sort(options_.begin(), options_.end(),
                   [](const Option& a, const Option& b) { return a.loss < b.loss; });
  find(start).measured = time;
  excludeTooLarge();
  predict();
}

// A step's encoded bytes with this choice, divided by its uncompressed bytes.
double CodecChooser::ratioWith(const CodecChoice& choice) const {
  double bytes = 0, raw = 0;
  for (const auto& [flow, some] : candidates_) {
    bytes += some[choice.at(flow)].bytes;
    raw += some[choice.at(flow)].rawBytes;
  }
  return raw > 0 ? bytes / raw : 0;
}

void CodecChooser::excludeTooLarge() {
  if (budget_.maxRatio >= 1) return;
  double smallest = kInfinity;
  for (const Option& option : options_) {
    if (!option.isExcluded) smallest = std::min(smallest, ratioWith(option.choice));
  }
  const double limit = std::max(kRounding * budget_.maxRatio, smallest);
  for (Option& option : options_) option.isTooLarge = ratioWith(option.choice) > limit;
}

// The longest list among the flows of a direction.
std::size_t CodecChooser::rungs(bool up) const {
  std::size_t max = 1;
  for (const auto& [flow, some] : candidates_) {
    if (isUp(flow) == up) max = std::max(max, some.size());
  }
  return max;
}

const CodecChooser::Option& CodecChooser::find(const CodecChoice& choice) const {
  return *std::find_if(options_.begin(), options_.end(),
                       [&](const Option& option) { return option.choice == choice; });
}

void CodecChooser::measured(const CodecChoice& choice, StepTime time) {
  find(choice).measured = time;
}

void CodecChooser::exclude(const CodecChoice& choice) {
  find(choice).isExcluded = true;
  excludeTooLarge();
}

void CodecChooser::limitRates(double rateUp, double rateDown) {
  BodyCosts& link = costs_.body();
  if (rateUp > 0) link.rateUp = std::min(link.rateUp, rateUp);
  if (rateDown > 0) link.rateDown = std::min(link.rateDown, rateDown);
  predict();
}

double CodecChooser::simulated(const CodecCandidates& candidates, const CodecChoice& choice,
                               double rateUp, double rateDown) const {
  StepCosts costs = costs_;
  costs.body().rateUp = rateUp;
  costs.body().rateDown = rateDown;
  for (const auto& [flow, some] : candidates) {
    const CodecCandidate& candidate = some[choice.at(flow)];
    costs.flows[flow] = {candidate.bytes, candidate.encodeSeconds, candidate.decodeSeconds};
  }
  Policy policy = policy_;
  if (costs.microBatches > kMaxSimulated) {
    costs = costs.inMicroBatches(kMaxSimulated);
    policy.inFlight = std::min(policy.inFlight, kMaxSimulated);
  }
  return simulateStep(costs, policy).seconds;
}

void CodecChooser::predict() {
  const double rateUp = costs_.body().rateUp;
  const double rateDown = costs_.body().rateDown;
  const double start = simulated(start_, rateUp, rateDown);
  const double scale = find(start_).measured->seconds / start;
  // A direction limits the step if it makes the step longer even though the other direction is as
  // fast as possible.
  const double unlimited = simulated(start_, kFastRate, kFastRate);
  const auto limitsStep = [&](double up, double down) {
    return simulated(start_, up, down) > (1 + kStepTolerance) * unlimited;
  };
  const bool upLimits = limitsStep(rateUp, kFastRate);
  const bool downLimits = limitsStep(kFastRate, rateDown);
  for (Option& option : options_) {
    option.predicted = scale * simulated(option.choice, rateUp, rateDown);
    option.isNeeded = true;
    for (const auto& [flow, rung] : option.choice) {
      const bool limits = isUp(flow) ? upLimits : downLimits;
      if (rung > start_.at(flow) && !limits && budget_.maxRatio >= 1) option.isNeeded = false;
    }
  }
}

// The measured step time divided by the predicted one, if all flows use this rung; 1 if that was
// not measured.
double CodecChooser::correction(std::size_t rung) const {
  for (const Option& option : options_) {
    if (option.uniform == rung && option.measured) {
      return option.measured->seconds / option.predicted;
    }
  }
  return 1;
}

double CodecChooser::corrected(const Option& option) const {
  double sum = 0;
  double flows = 0;
  for (const auto& [flow, rung] : option.choice) {
    if (candidates_.at(flow).size() == 1) continue;
    sum += correction(rung);
    ++flows;
  }
  return flows == 0 ? option.predicted : option.predicted * sum / flows;
}

StepTime CodecChooser::expected(const Option& option) const {
  if (option.measured) return *option.measured;
  bool isSmaller = true;
  for (const auto& [flow, rung] : option.choice) isSmaller = isSmaller && rung >= start_.at(flow);
  return {isSmaller ? (1 + kUnmeasured) * corrected(option) : kInfinity, 0};
}

// The shortest likely step time. A choice that was not measured may be faster than predicted.
StepTime CodecChooser::optimistic(const Option& option) const {
  if (option.measured) return *option.measured;
  if (!option.uniform) return {corrected(option), 0};
  return {option.predicted * (1 - (option.loss == 0 ? kNoneIsFaster : kPredictionError)), 0};
}

template <typename Time>
const CodecChooser::Option& CodecChooser::minLossy(const Time& timeOf) const {
  const auto isAllowed = [](const Option& option) {
    return !option.isExcluded && !option.isTooLarge && option.isNeeded;
  };
  StepTime fastest{kInfinity, 0};
  for (const Option& option : options_) {
    if (isAllowed(option) && timeOf(option).seconds < fastest.seconds) fastest = timeOf(option);
  }
  const Option* chosen = nullptr;
  for (const Option& option : options_) {  // from the least to the most lossy
    if (!isAllowed(option)) continue;
    const StepTime time = timeOf(option);
    const double tolerance = kStepTolerance + std::hypot(time.uncertainty, fastest.uncertainty);
    const double enough = std::max((1 + tolerance) * fastest.seconds, budget_.maxStepSeconds);
    if (time.seconds > enough) continue;
    if (chosen == nullptr ||
        (option.loss == chosen->loss && time.seconds < timeOf(*chosen).seconds)) {
      chosen = &option;
    }
  }
  return *chosen;
}

CodecChoice CodecChooser::best() const {
  return minLossy([&](const Option& option) { return expected(option); }).choice;
}

StepTime CodecChooser::timeOf(const CodecChoice& choice) const {
  const Option& option = find(choice);
  return option.measured ? *option.measured : StepTime{corrected(option), 0};
}

bool CodecChooser::isLinkBound(const CodecChoice& choice) const {
  const BodyCosts& link = costs_.body();
  return simulated(choice, link.rateUp, link.rateDown) >
         (1 + kStepTolerance) * simulated(choice, kFastRate, kFastRate);
}

double CodecChooser::relativeTime(const CodecCandidates& candidates,
                                  const CodecChoice& choice) const {
  const BodyCosts& link = costs_.body();
  CodecChoice firsts;
  for (const auto& [flow, some] : candidates) firsts[flow] = 0;
  return simulated(candidates, firsts, link.rateUp, link.rateDown) /
         simulated(choice, link.rateUp, link.rateDown);
}

bool CodecChooser::isWithinBudget(const CodecChoice& choice, double seconds) const {
  const double limit = budget_.maxStepSeconds;
  const bool isInTime = limit <= 0 || seconds <= (1 + kStepTolerance) * limit;
  // With their headers, uncompressed tensors may be larger than kRounding allows.
  return isInTime && (budget_.maxRatio >= 1 || ratioWith(choice) <= kRounding * budget_.maxRatio);
}

std::optional<CodecChooser::Trial> CodecChooser::nextTrial() const {
  const Option& option = minLossy([&](const Option& each) { return optimistic(each); });
  if (option.measured) return std::nullopt;
  return Trial{option.choice, corrected(option)};
}

}  // namespace cleave
