// Fits learned inserts to a model before a run, in one process, so that each reproduces the tensor
// that the model without inserts computes at its cut. Device thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/insert_pca.h"
#include "common/model/stage/stage.h"

namespace cleave {

// All tensors are those of training steps: with the batch norms' statistics of each micro-batch,
// and with dropout. The weights and running statistics of the model do not change.
class InsertTrainer {
 public:
  // Builds the model up to the last insert, and the inserts. `initial`: the weights that differ
  // from the initial values of the seed. Throws UsageError "bad-insert" if there are no inserts.
  InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial);
  ~InsertTrainer();

  // Adds the tensors at the cuts to the statistics that solve() uses.
  void observe(const BatchView& batch, std::uint64_t step);
  // Sets the linear part of each insert to the principal components of the observed tensors.
  // Throws RunError "non-finite".
  void solve();
  // Of each insert, after solve().
  std::vector<PrincipalComponents> components() const;

  // Whether an insert has more than a linear part, for which there is no closed form.
  bool needsTraining() const;
  // Updates such inserts once with the optimizer, without its parameter groups. The loss is the
  // mean squared error of the decoder's output.
  void train(const BatchView& batch, std::uint64_t step, double learningRate);

  // Adds a batch to the inserts' errors.
  void measure(const BatchView& batch, std::uint64_t step);
  // For each of the inserts, over the measured batches: the sum of the squared errors divided by
  // the sum of the squared differences from the mean of the channel or feature. 0: the insert
  // reproduces its tensor exactly. 1: it is no better than the mean.
  std::vector<double> takeErrors();

  // All weights of the model: the initial ones, and the inserts' own.
  std::vector<NamedTensor> weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
