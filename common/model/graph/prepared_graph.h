// A graph whose operators have been looked up and checked, for GraphProgram.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/graph/graph.h"
#include "common/model/graph/graph_operands.h"
#include "common/model/graph/operator_preconditions.h"
#include "common/model/model.h"

namespace cleave {

enum class NodeKind : std::uint8_t {
  operation,
  batchNorm,
  maskOfMean,
  samples,
  sizeOf,
  arithmetic
};

// An operator of the graph, ready to run.
struct GraphStep {
  NodeKind kind = NodeKind::operation;
  const wire::Node* node = nullptr;
  std::optional<c10::OperatorHandle> op;
  std::optional<Preconditions> preconditions;
  std::vector<Operand> operands;
  bool isRandom = false;
  bool isInPlace = false;
  bool isOffInEvaluation = false;  // has a flag or a probability that switches it off
  GraphIds last;                   // values that are no longer needed after this node
};

class PreparedGraph {
 public:
  // Throws UsageError "bad-graph" if an argument does not fit its operator.
  explicit PreparedGraph(const wire::Graph& given);
  PreparedGraph(const PreparedGraph&) = delete;  // the steps point into the graph
  PreparedGraph& operator=(const PreparedGraph&) = delete;

  const wire::Graph graph;
  GraphIds weightIds;
  std::vector<ParameterSpec> weights;
  std::vector<NormRow> norms;
  std::vector<GraphStep> steps;
  std::vector<std::size_t> changedInputs;  // positions of the inputs that must be copied

 private:
  void addWeight(std::uint32_t id, const wire::Value& value);
  GraphStep prepare(const wire::Node& node);
  void prepareOperation(const wire::Node& node, GraphStep& step);
  void prepareNorm(const wire::Node& node, GraphStep& step);
  std::size_t weightOf(const wire::Node& node, std::uint32_t idPlus1) const;
  void findLastUses();
  void findChangedInputs();
};

}  // namespace cleave
