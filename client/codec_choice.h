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

// Chooses the least lossy codecs with which the link no longer holds a step back: no other choice
// makes the step more than 3 % faster. The simulator predicts what was not measured, in proportion
// to the measured step with `start`, corrected by what codecs took on all flows. Buffers on the
// path make a link look faster than it is, so a choice with larger tensors than those of `start`
// may be tried, but is best() only once measured.
class CodecChooser {
 public:
  // `costs` are those of steps with `start`, which took `seconds` each. A rate of 0 was too high to
  // be measured with the few bytes that were sent.
  CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
               const CodecChoice& start, double seconds);

  // What a step took with that choice.
  void measured(const CodecChoice& choice, double seconds);
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
    double loss = 0;                     // adds up over the flows
    std::optional<std::size_t> uniform;  // the position of all flows that have a choice
    double predicted = 0;
    std::optional<double> measured;
    bool isExcluded = false;
  };

  void predict();
  Option& find(const CodecChoice& choice);
  double correction(std::size_t position) const;
  double corrected(const Option& option) const;
  double expected(const Option& option) const;
  double optimistic(const Option& option) const;
  template <typename Seconds>
  const Option& leastLossy(const Seconds& secondsOf) const;

  StepCosts costs_;
  const Policy policy_;
  const CodecCandidates candidates_;
  const CodecChoice start_;
  std::vector<Option> options_;
};

}  // namespace cleave
