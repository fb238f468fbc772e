// Chooses each flow's codec if the configuration says `auto`. Computes only from measured trial
// steps; no Torch, no sockets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/predict/simulator.h"

namespace cleave {

// The codec of `auto` flows in the first trial, and whenever no trial is possible.
inline constexpr std::string_view kAutoStart = "block:bits=8";

// Returns the codecs to choose from, the least lossy first, if `spec` is `auto` or
// `auto:min_bits=N`; nothing for any other codec. Throws UsageError.
std::optional<std::vector<std::string>> autoCodecs(std::string_view spec);

// One codec that a flow may get. Bytes and seconds are per tensor of one micro-batch.
struct CodecCandidate {
  std::string spec;
  double bytes = 0;
  double encodeSeconds = 0, decodeSeconds = 0;
};
// The candidates of each flow, the least lossy first. A flow with a configured codec has only that
// one.
using CodecCandidates = FlowMap<std::vector<CodecCandidate>>;
// The index of each flow's candidate, in the order of the candidates' flows.
using CodecChoice = FlowMap<std::size_t>;

// Mean seconds of a step, and their relative uncertainty: two standard errors, divided by the mean.
struct StepTime {
  double seconds = 0;
  double uncertainty = 0;
};

// Chooses the least lossy codecs with which the link no longer limits the step: no other choice
// makes the step faster by more than 3 % plus the uncertainty of the two measurements.
//
// The flows of a direction get the codec at the same rung (index) of their lists, or the last one
// if a list is shorter. A rung beyond `start` is used only if the link's rate in that direction
// limits the step.
//
// Choices that were not measured are predicted by the simulator, scaled by the measured step with
// `start` and corrected by the measured times of codecs on all flows. best() returns such a choice
// only if it is expected to be 15 % faster, and never one with larger tensors than `start`: buffers
// on the path make a link look faster than it is.
class CodecChooser {
 public:
  // `costs` and `time` were measured with `start`. A rate of 0 means that too few bytes were sent
  // to measure it.
  CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
               const CodecChoice& start, StepTime time);

  // Records the measured step time of a choice.
  void measured(const CodecChoice& choice, StepTime time);
  // Excludes a choice that cannot be used.
  void exclude(const CodecChoice& choice);
  // Sets the link's rates as measured by a later trial. The lower rates are kept: buffers on the
  // path make a rate look too high, and a larger transfer measures it better.
  void limitRates(double rateUp, double rateDown);

  CodecChoice best() const;
  // The next choice to measure because it may change best(), with its predicted step time. Nothing
  // if no measurement could change it.
  struct Trial {
    CodecChoice choice;
    double seconds = 0;
  };
  std::optional<Trial> nextTrial() const;

 private:
  struct Option {
    CodecChoice choice;
    double loss = 0;                     // summed over the directions
    std::optional<std::size_t> uniform;  // the rung, if both directions have the same one
    double predicted = 0;
    std::optional<StepTime> measured;
    bool isExcluded = false;
    bool isNeeded = true;  // no rung beyond the start's unless the direction limits the step
  };

  void predict();
  double simulated(const CodecChoice& choice, double rateUp, double rateDown) const;
  bool isUp(Flow flow) const { return costs_.body().place.isUp(flow); }
  std::size_t rungs(bool up) const;
  Option& find(const CodecChoice& choice);
  double correction(std::size_t rung) const;
  double corrected(const Option& option) const;
  StepTime expected(const Option& option) const;
  StepTime optimistic(const Option& option) const;
  template <typename Time>
  const Option& minLossy(const Time& timeOf) const;

  StepCosts costs_;
  const Policy policy_;
  const CodecCandidates candidates_;
  const CodecChoice start_;
  std::vector<Option> options_;
};

}  // namespace cleave
