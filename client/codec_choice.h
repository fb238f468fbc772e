// Which codec each flow gets if the configuration says `auto`: arithmetic on what a few trial steps
// measured, without Torch and sockets.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/pipeline/simulator.h"

namespace cleave {

// The codec of `auto` flows in the first trial, and wherever nothing can be tried.
inline constexpr std::string_view kAutoStart = "block:bits=8";

// If `spec` is `auto` or `auto:min_bits=N`: the codecs it chooses among, the least lossy first.
// Nothing for any other codec. Throws UsageError.
std::optional<std::vector<std::string>> autoCodecs(std::string_view spec);

// One codec that a flow may get. Bytes and seconds are of one micro-batch's tensor.
struct CodecCandidate {
  std::string spec;
  double bytes = 0;
  double encodeSeconds = 0, decodeSeconds = 0;
};
// By flow, the least lossy first. A flow whose codec is given has that one alone.
using CodecCandidates = std::array<std::vector<CodecCandidate>, kTensorFlows>;
// By flow: the position among its candidates.
using CodecChoice = std::array<std::size_t, kTensorFlows>;

// A step's seconds, and how far from them another measurement may be, as a share of them.
struct StepTime {
  double seconds = 0;
  double uncertainty = 0;
};

// Chooses the least lossy codecs with which the link no longer holds a step back: no other choice
// makes the step faster by more than 3 % and the uncertainty of the two measurements. The flows of
// a direction get the same rung of the list, so far as they have it; one beyond that of `start`
// only if the link's rate in that direction holds the step back. The simulator predicts what was
// not measured, in proportion to the measured step with `start`, corrected by what codecs took on
// all flows. What was not measured is best() only if it is expected to be 15 % faster, and never
// with larger tensors than those of `start`: buffers on the path make a link look faster than it
// is.
class CodecChooser {
 public:
  // `costs` are those of steps with `start`, which took so long. A rate of 0 was too high to be
  // measured with the few bytes that were sent.
  CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
               const CodecChoice& start, StepTime time);

  // What a step took with that choice.
  void measured(const CodecChoice& choice, StepTime time);
  // The choice cannot be used.
  void exclude(const CodecChoice& choice);
  // The link's rates as a later trial measured them. The lower ones are used: buffers on the path
  // make a rate look too high, and a larger transfer measures it better.
  void limitRates(double rateUp, double rateDown);

  CodecChoice best() const;
  // The choice whose measurement may change best(), with the predicted seconds of a step; nothing
  // if none may.
  struct Trial {
    CodecChoice choice;
    double seconds = 0;
  };
  std::optional<Trial> nextTrial() const;

 private:
  struct Option {
    CodecChoice choice;
    double loss = 0;                     // adds up over the directions
    std::optional<std::size_t> uniform;  // the rung of both directions
    double predicted = 0;
    std::optional<StepTime> measured;
    bool isExcluded = false;
    bool isNeeded = true;  // no rung beyond the start's where the link does not hold the step back
  };

  void predict();
  double simulated(const CodecChoice& choice, double rateUp, double rateDown) const;
  std::size_t rungs(bool up) const;
  Option& find(const CodecChoice& choice);
  double correction(std::size_t rung) const;
  double corrected(const Option& option) const;
  StepTime expected(const Option& option) const;
  StepTime optimistic(const Option& option) const;
  template <typename Time>
  const Option& leastLossy(const Time& timeOf) const;

  StepCosts costs_;
  const Policy policy_;
  const CodecCandidates candidates_;
  const CodecChoice start_;
  std::vector<Option> options_;
};

}  // namespace cleave
