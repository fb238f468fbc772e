// Runs a graph (common/graph/graph.h) with LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "common/graph/graph.h"
#include "common/model/model.h"

namespace cleave {

class PreparedGraph;

class GraphProgram {
 public:
  // Looks up the operators and prepares their arguments. Requires a valid graph. Throws UsageError
  // "bad-graph" if an argument does not fit its operator.
  explicit GraphProgram(const wire::Graph& graph);
  ~GraphProgram();
  GraphProgram(const GraphProgram&) = delete;
  GraphProgram& operator=(const GraphProgram&) = delete;

  // The parameters, buffers and constants, in the order in which run() takes them.
  const std::vector<ParameterSpec>& weights() const;
  // The batch norms that train, in the order in which run() records their statistics.
  const std::vector<NormRow>& norms() const;

  // The random operators that draw in evaluations although they may belong to training only,
  // because the graph has no evaluation graph.
  std::vector<std::string> drawnInEvaluation() const;

  // Returns the graph's outputs for these inputs. The first dimension of the first input is the
  // samples of the micro-batch. Each random operator draws from (seed, node, step, i, phase). In
  // evaluation, runs the evaluation graph. Without one, runs the graph itself, in which dropout
  // does nothing, batch norms use the running statistics, and a Bernoulli mask has its mean.
  //
  // Device thread. Throws c10::Error if tensors do not fit an operator.
  TensorList run(const TensorList& inputs, std::span<const at::Tensor> weights,
                 const BlockContext& context) const;

 private:
  std::unique_ptr<PreparedGraph> prepared_;
  std::unique_ptr<PreparedGraph> evaluation_;  // null: the graph has no evaluation graph
  // For each weight of the evaluation graph, its position in weights().
  std::vector<std::size_t> evaluationWeights_;
};

}  // namespace cleave
