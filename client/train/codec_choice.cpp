#include "client/train/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/codec/spec.h"

namespace cleave {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A step that is slower by less than this share, plus the measurement uncertainty, counts as
// equally fast.
constexpr double kTolerance = 0.03;
// A choice that was not measured must be predicted to be faster by this share.
constexpr double kUnmeasured = 0.15;
// The simulator assumes that each codec thread has its own core. If there is no spare core, codecs
// slow down the other computation, so `none` is faster than predicted by up to this share.
constexpr double kNoneIsFaster = 0.12;
// The predicted step time of one codec for all flows may be too high by up to this share.
constexpr double kPredictionError = 0.02;
// The assumed rate, in bytes per second, of a link whose rate could not be measured.
constexpr double kFastRate = 1e10;
// More micro-batches hardly change a prediction, but take longer to simulate.
constexpr std::uint32_t kMaxSimulated = 64;

struct Rung {
  std::string_view spec;
  int bits;
};
constexpr Rung kRungs[] = {{"none", 32}, {kAutoStart, 8}, {"block:bits=4", 4}, {"block:bits=2", 2}};

// The loss of one direction, in arbitrary units. The loss grows so that one direction at rung N + 1
// counts more than both directions at rung N.
double lossOf(std::size_t rung) { return std::exp2(static_cast<double>(rung)) - 1; }

}  // namespace

std::optional<std::vector<std::string>> autoCodecs(std::string_view text) {
  constexpr int kDefaultBits = 4;
  const CodecSpec spec = parseCodecSpec(text);
  if (spec.name != "auto") return std::nullopt;
  CodecParameters parameters(spec);
  const int bits = parameters.integer("min_bits", 2, 8, kDefaultBits);
  parameters.finish();
  std::vector<std::string> specs;
  for (const Rung& rung : kRungs) {
    if (rung.bits >= bits) specs.emplace_back(rung.spec);
  }
  return specs;
}

CodecChooser::CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
                           const CodecChoice& start, StepTime time)
    : costs_(costs), policy_(std::move(policy)), candidates_(std::move(candidates)), start_(start) {
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
  predict();
}

// The longest list among the flows of a direction.
std::size_t CodecChooser::rungs(bool up) const {
  std::size_t max = 1;
  for (const auto& [flow, some] : candidates_) {
    if (isUp(flow) == up) max = std::max(max, some.size());
  }
  return max;
}

CodecChooser::Option& CodecChooser::find(const CodecChoice& choice) {
  return *std::find_if(options_.begin(), options_.end(),
                       [&](const Option& option) { return option.choice == choice; });
}

void CodecChooser::measured(const CodecChoice& choice, StepTime time) {
  find(choice).measured = time;
}

void CodecChooser::exclude(const CodecChoice& choice) { find(choice).isExcluded = true; }

void CodecChooser::limitRates(double rateUp, double rateDown) {
  BodyCosts& link = costs_.body();
  if (rateUp > 0) link.rateUp = std::min(link.rateUp, rateUp);
  if (rateDown > 0) link.rateDown = std::min(link.rateDown, rateDown);
  predict();
}

double CodecChooser::simulated(const CodecChoice& choice, double rateUp, double rateDown) const {
  StepCosts costs = costs_;
  costs.body().rateUp = rateUp;
  costs.body().rateDown = rateDown;
  for (const auto& [flow, some] : candidates_) {
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
    return simulated(start_, up, down) > (1 + kTolerance) * unlimited;
  };
  const bool upLimits = limitsStep(rateUp, kFastRate);
  const bool downLimits = limitsStep(kFastRate, rateDown);
  for (Option& option : options_) {
    option.predicted = scale * simulated(option.choice, rateUp, rateDown);
    option.isNeeded = true;
    for (const auto& [flow, rung] : option.choice) {
      const bool limits = isUp(flow) ? upLimits : downLimits;
      if (rung > start_.at(flow) && !limits) option.isNeeded = false;
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
  const auto isAllowed = [](const Option& option) { return !option.isExcluded && option.isNeeded; };
  StepTime fastest{kInfinity, 0};
  for (const Option& option : options_) {
    if (isAllowed(option) && timeOf(option).seconds < fastest.seconds) fastest = timeOf(option);
  }
  const Option* chosen = nullptr;
  for (const Option& option : options_) {  // from the least to the most lossy
    if (!isAllowed(option)) continue;
    const StepTime time = timeOf(option);
    const double tolerance = kTolerance + std::hypot(time.uncertainty, fastest.uncertainty);
    if (time.seconds > (1 + tolerance) * fastest.seconds) continue;
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

std::optional<CodecChooser::Trial> CodecChooser::nextTrial() const {
  const Option& option = minLossy([&](const Option& each) { return optimistic(each); });
  if (option.measured) return std::nullopt;
  return Trial{option.choice, corrected(option)};
}

}  // namespace cleave
