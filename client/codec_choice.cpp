#include "client/codec_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/codec/spec.h"

namespace cleave {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A step that is slower by less counts as equally fast: repeated trials of a codec differ by about
// that much.
constexpr double kTolerance = 0.03;
// A simulated step has a processor for each codec thread. Without one to spare, codecs slow down
// what is computed beside them, so that `none` is faster than predicted, by up to so much.
constexpr double kNoneIsFaster = 0.12;
// The share by which a prediction of another codec on all flows may be too high.
constexpr double kPredictionError = 0.02;
// Bytes per second, of a link whose rate could not be measured.
constexpr double kFastRate = 1e10;
// More micro-batches change a prediction little, and take longer to simulate.
constexpr std::uint32_t kMaxSimulated = 64;

struct Rung {
  std::string_view spec;
  int bits;
};
constexpr Rung kRungs[] = {{"none", 32}, {kAutoStart, 8}, {"block:bits=4", 4}, {"block:bits=2", 2}};

// Of a flow. One flow at the next rung loses more than all four flows at the rung before.
double lossOf(std::size_t position) {
  double loss = 0;
  for (std::size_t rung = 0; rung < position; ++rung) loss = kTensorFlows * loss + 1;
  return loss;
}

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
                           const CodecChoice& start, double seconds)
    : costs_(costs), policy_(std::move(policy)), candidates_(std::move(candidates)), start_(start) {
  if (costs_.rateUp <= 0) costs_.rateUp = kFastRate;
  if (costs_.rateDown <= 0) costs_.rateDown = kFastRate;
  std::size_t all = 1;
  for (const auto& flow : candidates_) all *= flow.size();
  for (std::size_t number = 0; number < all; ++number) {
    Option option;
    bool isUniform = true;
    for (std::size_t f = 0, rest = number; f < kTensorFlows; ++f) {
      const std::size_t count = candidates_[f].size();
      option.choice[f] = rest % count;
      rest /= count;
      option.loss += lossOf(option.choice[f]);
      if (count == 1) continue;
      if (!option.uniform) option.uniform = option.choice[f];
      isUniform = isUniform && option.choice[f] == *option.uniform;
    }
    if (!isUniform) option.uniform.reset();
    options_.push_back(option);
  }
  std::stable_sort(options_.begin(), options_.end(),
                   [](const Option& a, const Option& b) { return a.loss < b.loss; });
  find(start).measured = seconds;
  predict();
}

CodecChooser::Option& CodecChooser::find(const CodecChoice& choice) {
  return *std::find_if(options_.begin(), options_.end(),
                       [&](const Option& option) { return option.choice == choice; });
}

void CodecChooser::measured(const CodecChoice& choice, double seconds) {
  find(choice).measured = seconds;
}

void CodecChooser::exclude(const CodecChoice& choice) { find(choice).isExcluded = true; }

void CodecChooser::limitRates(double rateUp, double rateDown) {
  if (rateUp > 0) costs_.rateUp = std::min(costs_.rateUp, rateUp);
  if (rateDown > 0) costs_.rateDown = std::min(costs_.rateDown, rateDown);
  predict();
}

void CodecChooser::predict() {
  const auto simulated = [&](const CodecChoice& choice) {
    StepCosts costs = costs_;
    for (std::size_t f = 0; f < kTensorFlows; ++f) {
      const CodecCandidate& candidate = candidates_[f][choice[f]];
      costs.bytes[f] = candidate.bytes;
      costs.encodeSeconds[f] = candidate.encodeSeconds;
      costs.decodeSeconds[f] = candidate.decodeSeconds;
    }
    Policy policy = policy_;
    if (costs.microBatches > kMaxSimulated) {
      costs = costs.inMicroBatches(kMaxSimulated);
      policy.inFlight = std::min(policy.inFlight, kMaxSimulated);
    }
    return simulateStep(costs, policy).seconds;
  };
  const double scale = *find(start_).measured / simulated(start_);
  for (Option& option : options_) option.predicted = scale * simulated(option.choice);
}

// By how much a codec on all flows took longer than predicted; 1 if it was not measured.
double CodecChooser::correction(std::size_t position) const {
  for (const Option& option : options_) {
    if (option.uniform == position && option.measured) return *option.measured / option.predicted;
  }
  return 1;
}

double CodecChooser::corrected(const Option& option) const {
  double sum = 0;
  double flows = 0;
  for (std::size_t f = 0; f < kTensorFlows; ++f) {
    if (candidates_[f].size() == 1) continue;
    sum += correction(option.choice[f]);
    ++flows;
  }
  return flows == 0 ? option.predicted : option.predicted * sum / flows;
}

double CodecChooser::expected(const Option& option) const {
  if (option.measured) return *option.measured;
  bool isSmaller = true;
  for (std::size_t f = 0; f < kTensorFlows; ++f) {
    isSmaller = isSmaller && option.choice[f] >= start_[f];
  }
  return isSmaller ? corrected(option) : kInfinity;
}

// The shortest likely seconds of a step: a choice that was not tried may be faster than predicted.
double CodecChooser::optimistic(const Option& option) const {
  if (option.measured) return *option.measured;
  if (!option.uniform) return corrected(option);
  return option.predicted * (1 - (option.loss == 0 ? kNoneIsFaster : kPredictionError));
}

template <typename Seconds>
const CodecChooser::Option& CodecChooser::leastLossy(const Seconds& secondsOf) const {
  double fastest = kInfinity;
  for (const Option& option : options_) {
    if (!option.isExcluded) fastest = std::min(fastest, secondsOf(option));
  }
  const Option* chosen = nullptr;
  for (const Option& option : options_) {  // in the order of their loss
    if (option.isExcluded || secondsOf(option) > (1 + kTolerance) * fastest) continue;
    if (chosen == nullptr ||
        (option.loss == chosen->loss && secondsOf(option) < secondsOf(*chosen))) {
      chosen = &option;
    }
  }
  return *chosen;
}

CodecChoice CodecChooser::best() const {
  return leastLossy([&](const Option& option) { return expected(option); }).choice;
}

std::optional<CodecChooser::Trial> CodecChooser::nextTrial() const {
  const Option& option = leastLossy([&](const Option& each) { return optimistic(each); });
  if (option.measured) return std::nullopt;
  return Trial{option.choice, corrected(option)};
}

}  // namespace cleave
