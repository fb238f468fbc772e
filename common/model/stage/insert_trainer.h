// Fits learned inserts before a run, so that each reproduces what it encodes: the tensor that the
// model without inserts computes at its cut, or what the insert before it at the same cut puts out.
// So the first inserts of all cuts, which are of level 0, are fitted before the second ones, of
// level 1. The tensors come from InsertInputs, or through a server. Device thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "common/model/insert_pca.h"
#include "common/model/stage/stage.h"

namespace cleave {

// What an insert loses: sums of squared errors, divided by those of the differences from the mean
// of the channel or feature. 0: it is exact. 1: it is no better than the mean.
struct InsertError {
  double own = 0;    // of what it encodes
  double atCut = 0;  // of the tensor at the cut, from this insert's code; like `own` at level 0
};

class InsertTrainer {
 public:
  // Builds the inserts. `initial`: the weights that differ from the initial values of the seed.
  // Throws UsageError "bad-insert" if there are no inserts.
  InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial);
  ~InsertTrainer();

  std::size_t levels() const;
  std::set<std::uint32_t> cuts() const;  // those with inserts

  // Below, `x` is the tensor that an insert encodes at this cut, of one micro-batch: [samples, …],
  // on the CPU.

  // Adds the tensor to the statistics that solve() uses.
  void observe(std::size_t level, std::uint32_t cut, const at::Tensor& x);
  // Sets the linear part of each insert of the level to the principal components of the observed
  // tensors. Throws RunError "non-finite".
  void solve(std::size_t level);

  // Whether an insert of the level has more than a linear part, for which there is no closed form.
  bool needsTraining(std::size_t level) const;
  // Adds to the gradients of such an insert. The loss is the mean squared error of the decoder's
  // output, over the batch's micro-batches.
  void addGradients(std::size_t level, std::uint32_t cut, const at::Tensor& x,
                    std::uint32_t microBatches);
  // Updates such inserts once with the optimizer, without its parameter groups.
  void update(std::size_t level, std::uint64_t step, double learningRate);

  // Adds the tensor to the errors of all inserts at its cut.
  void measure(std::uint32_t cut, const at::Tensor& x);
  // Of each of the inserts, over the measured tensors.
  std::vector<InsertError> errors() const;
  // Of each of the inserts, after solve().
  std::vector<PrincipalComponents> components() const;

  // All weights of the model: the initial ones, and the inserts' own.
  std::vector<NamedTensor> weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
