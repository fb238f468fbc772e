// Shows how a run goes: one line that rewrites itself on a terminal, a plain line every few seconds
// elsewhere.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "common/core/clock.h"
#include "common/core/units.h"
#include "common/pipeline/tensor_link.h"

namespace cleave {

class Progress {
 public:
  Progress(std::ostream& out, bool isTerminal, std::uint64_t totalSteps);

  struct State {
    std::uint64_t epoch = 0, epochs = 0;
    std::uint64_t step = 0;
    std::uint64_t samples = 0;  // trained on so far
    double loss = 0;
    std::string what = "train";  // or "eval"
  };
  // After each batch; writes only now and then.
  void update(const State& state, const LinkTotals& totals);
  // A line that stays.
  void line(const std::string& text);

 private:
  void clear();

  std::ostream& out_;
  const bool isTerminal_;
  const std::uint64_t totalSteps_;
  const SteadyTime start_ = now();
  SteadyTime lastShown_;
  State lastState_;
  LinkTotals lastTotals_;
  std::size_t width_ = 0;  // of the line on the terminal
};

// "1:02:03", "0:07".
std::string timeText(double seconds);

}  // namespace cleave
