// What inserts at a model's cuts would encode in training steps, computed in one process. Device
// thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

// Called with what an insert at the cut would encode, of one micro-batch: [samples, …], on the CPU.
using UseInsertInput =
    std::function<void(std::uint32_t cut, const at::Tensor& x, const MicroBatch& at)>;

// The weights and running statistics of the model do not change. Batch norms use the statistics of
// each micro-batch, and dropout is active.
class InsertInputs {
 public:
  // The model without inserts, up to the last of these cuts (numbers among options.allCuts()).
  // `initial`: the weights that differ from the initial values of the seed. Throws UsageError
  // "bad-insert" if an insert cannot encode what crosses one of the cuts.
  InsertInputs(const StageOptions& options, const std::set<std::uint32_t>& cuts,
               const std::vector<NamedTensor>& initial);
  ~InsertInputs();

  // Computes each micro-batch in its order.
  void forEach(const BatchView& batch, std::uint64_t step, const UseInsertInput& use);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cleave
