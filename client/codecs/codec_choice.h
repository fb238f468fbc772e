// Chooses each flow's codec if the configuration says `auto`. Computes only from measured trial
// steps; no Torch, no sockets.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "common/codec/codec_plan.h"
#include "common/codec/spec.h"
#include "common/predict/simulator.h"

namespace cleave {

// Limits of the choice; by default there are none.
struct AutoBudget {
  double maxRatio = 1;        // a step's encoded bytes / its uncompressed bytes; 1: no limit
  double maxStepSeconds = 0;  // 0: no limit

  bool isLimited() const { return maxRatio < 1 || maxStepSeconds > 0; }
  // The limits of both.
  AutoBudget stricter(const AutoBudget& other) const;
};

// The loss of one direction at this position in the lists of choices, in arbitrary units. It grows
// so that one direction at position N + 1 counts more than both directions at position N.
double lossOf(std::size_t rung);

// What a flow with the codec `auto` may get.
struct AutoCodec {
  std::vector<ParsedCodec> choices;  // starting with the least lossy one
  ParsedCodec start;                 // in the first trial, and in the run if no trial is possible
  AutoBudget budget;
};

// What `auto` with its parameters means; nullopt for any other codec. Throws UsageError.
std::optional<AutoCodec> autoCodec(const CodecSpec& spec);

// One codec that a flow may get. Bytes and seconds are per tensor of one micro-batch.
struct CodecCandidate {
  ParsedCodec codec;
  double rawBytes = 0;  // of the tensor
  double bytes = 0;
  double encodeSeconds = 0, decodeSeconds = 0;
};
// The candidates of each flow, starting with the least lossy one. A flow with a configured codec
// has that codec as its only candidate.
using CodecCandidates = FlowMap<std::vector<CodecCandidate>>;
// For each flow, the index of its chosen candidate in CodecCandidates.
using CodecChoice = FlowMap<std::size_t>;

// The mean duration of a step in seconds, and its relative uncertainty: two standard errors divided
// by the mean.
struct StepTime {
  double seconds = 0;
  double uncertainty = 0;
};

// A step that is slower by less than this share, plus the measurement uncertainty, counts as
// equally fast.
inline constexpr double kStepTolerance = 0.03;

// Chooses the least lossy codecs with which the link is no longer the bottleneck. This is the
// case if no other choice is faster by more than 3 % plus the uncertainty of the two measurements.
// With AutoBudget::maxStepSeconds, a step that is not longer is fast enough. With maxRatio, choices
// with more bytes are excluded, unless all have more: then the smallest ones are allowed.
//
// All flows of a direction get the codec at the same index of their candidate lists, called the
// rung. A flow whose list is shorter gets the last codec in its list. A rung beyond that of `start`
// is used only if the link's rate in that direction limits the step, or if maxRatio requires it.
//
// The step times of choices that were not measured are predicted by the simulator. Predictions are
// scaled so that the one for `start` equals its measured time, and corrected by the measured times
// of choices that use one codec for all flows. best() returns an unmeasured choice only if it is
// expected to be 15 % faster. It never returns an unmeasured choice with larger tensors than
// `start`, because buffers on the path make a link look faster than it is.
class CodecChooser {
 public:
  // `costs` and `time` were measured with `start`. A rate of 0 means that too few bytes were sent
  // to measure it.
  CodecChooser(const StepCosts& costs, Policy policy, CodecCandidates candidates,
               const CodecChoice& start, StepTime time, const AutoBudget& budget = {});

  // Records the measured step time of a choice.
  void measured(const CodecChoice& choice, StepTime time);
  // Excludes a choice that cannot be used.
  void exclude(const CodecChoice& choice);
  // Adds the link's rates from a later trial. For each direction the lowest measured rate is used,
  // because buffers on the path make a rate look too high.
  void limitRates(double rateUp, double rateDown);

  CodecChoice best() const;
  // Whether a step with this choice would be shorter, beyond the tolerance, if the link were
  // infinitely fast.
  bool isLinkBound(const CodecChoice& choice) const;
  // The duration of a step with this choice: measured, or else predicted, with no uncertainty.
  StepTime timeOf(const CodecChoice& choice) const;
  // Whether this choice is within the limits if its step takes so many seconds.
  bool isWithinBudget(const CodecChoice& choice, double seconds) const;
  // The predicted duration of a step with the first of these candidates of each flow, divided by
  // that with `choice`.
  double relativeTime(const CodecCandidates& candidates, const CodecChoice& choice) const;
  // A choice whose measurement may change best(), and its predicted step time.
  struct Trial {
    CodecChoice choice;
    double seconds = 0;
  };
  // The trial to run next; nothing if no measurement could change best().
  std::optional<Trial> nextTrial() const;

 private:
  struct Option {
    CodecChoice choice;
    double loss = 0;                     // summed over the directions
    std::optional<std::size_t> uniform;  // the rung, if all flows use the same one
    double predicted = 0;
    std::optional<StepTime> measured;
    bool isExcluded = false;
    bool isTooLarge = false;  // exceeds maxRatio
    // False if a rung is beyond that of `start`, although its direction does not limit the step.
    bool isNeeded = true;
  };

  double ratioWith(const CodecChoice& choice) const;
  void excludeTooLarge();
  void predict();
  double simulated(const CodecChoice& choice, double rateUp, double rateDown) const {
    return simulated(candidates_, choice, rateUp, rateDown);
  }
  double simulated(const CodecCandidates& candidates, const CodecChoice& choice, double rateUp,
                   double rateDown) const;
  bool isUp(Flow flow) const { return costs_.body().place.isUp(flow); }
  std::size_t rungs(bool up) const;
  const Option& find(const CodecChoice& choice) const;
  Option& find(const CodecChoice& choice) {
    return const_cast<Option&>(std::as_const(*this).find(choice));
  }
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
  const AutoBudget budget_;
  std::vector<Option> options_;
};

}  // namespace cleave
