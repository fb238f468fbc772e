// A backward pass in two parts: first the gradients of the inputs, for which a neighbouring part
// waits, then those of the weights.
//
// Convolutions and matrix products compute the two in separate operations, so that the second can
// be deferred. All other operators compute them together, so the gradients of their weights, such
// as those of norms and embeddings, belong to the first part. The gradients of a weight that
// several operators use belong to it too, because the order in which autograd adds them must not
// change. The gradients are bit-identical to those of an undivided pass.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/model/model.h"

namespace cleave {

// The name of the operator of the model `sleep`, which can be split too.
inline constexpr std::string_view kSleepBackward = "SleepBackward";

// The outputs of a part that have a gradient, and their gradients.
struct Roots {
  TensorList outputs, gradients;
};
// Accumulates all gradients.
void backward(const Roots& roots);

// What autograd holds its nodes by: std::shared_ptr, and in newer versions of LibTorch
// c10::intrusive_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);

class SplitBackward {
 public:
  // Accumulates the gradients of the inputs that require one, which are leaves of autograd's graph,
  // and those of the weights that belong to the first part.
  SplitBackward(const Roots& roots, const TensorList& inputs);

  // Accumulates the other gradients, and frees what autograd saved for them. Call once.
  void finish();

 private:
  // An operator whose weights' gradients are missing.
  struct Later {
    NodePtr node;
    std::shared_ptr<TensorList> gradients;  // of the operator's outputs
    torch::autograd::edge_list weights;     // where its weights' gradients are accumulated
  };

  void defer(const NodePtr& node, const torch::autograd::Edge& weight);
  bool isKept(const at::Tensor& tensor) const;

  std::vector<Later> later_;
  std::unordered_map<const torch::autograd::Node*, std::size_t> positions_;  // in later_
};

}  // namespace cleave
