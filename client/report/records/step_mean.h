// Mean of a figure over the training steps of a run.
#pragma once

#include <cstdint>

namespace cleave {

// The first step of each process is a warm-up: it loads libraries and opens windows. It counts only
// if the run has no other steps.
class StepMean {
 public:
  void add(double value, bool isWarmUp) {
    Sum& sum = isWarmUp ? warmUps_ : others_;
    sum.value += value;
    ++sum.steps;
  }
  bool isEmpty() const { return others_.steps + warmUps_.steps == 0; }
  // 0 if it is empty.
  double value() const {
    const Sum& sum = others_.steps > 0 ? others_ : warmUps_;
    return sum.steps == 0 ? 0 : sum.value / static_cast<double>(sum.steps);
  }

 private:
  struct Sum {
    double value = 0;
    std::uint64_t steps = 0;
  };
  Sum others_, warmUps_;
};

}  // namespace cleave
