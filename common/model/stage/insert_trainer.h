// Trains learned inserts alone, in one process. Each insert learns to reproduce the tensor that the
// model without inserts computes at its cut. Device thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

class InsertTrainer {
 public:
  // Builds the model up to the last insert, and the inserts. `initial`: the weights that differ
  // from the initial values of the seed. Throws UsageError "bad-insert" if there are no inserts.
  InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial);
  ~InsertTrainer();

  // Computes the tensors at the cuts, in evaluation, and updates each insert once with the
  // optimizer, without its parameter groups. The loss is the mean squared error of the decoder's
  // output.
  void step(const BatchView& batch, std::uint64_t step, double learningRate);

  // For each of the inserts, over the steps since the last call: the sum of the squared errors
  // divided by the sum of the squared values. 0: the insert reproduces its tensor exactly. 1: it is
  // no better than zeros.
  std::vector<double> takeErrors();

  // All weights of the model: the initial ones, and the inserts' own.
  std::vector<NamedTensor> weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
