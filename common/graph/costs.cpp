#include "common/graph/costs.h"

#include <cmath>
#include <string_view>

namespace cleave {
namespace {

// Returns the value of the n-th argument, or null if the argument is not a tensor.
const wire::Value* tensorAt(const wire::Graph& graph, const wire::Node& node, int n) {
  if (n >= node.arguments_size()) return nullptr;
  const wire::Argument& argument = node.arguments(n);
  if (argument.value_case() != wire::Argument::kTensor) return nullptr;
  return &graph.values(static_cast<int>(argument.tensor()));
}

double lastDimension(const wire::Value& value) {
  const int rank = value.shape_size();
  return rank == 0 ? 1 : std::abs(static_cast<double>(value.shape(rank - 1)));
}

// The number of multiplications per value of the operator's result.
double multiplicationsPerResult(const wire::Graph& graph, const wire::Node& node) {
  const std::string_view op = node.op();
  const wire::Value* const first = tensorAt(graph, node, 0);
  const wire::Value* const second = tensorAt(graph, node, 1);
  if (first == nullptr || second == nullptr) return 0;
  if (op.starts_with("aten.conv") && second->shape_size() > 0) {
    return elementsPerSample(*second) / static_cast<double>(second->shape(0));
  }
  if (op == "aten.linear.default" || op == "aten.matmul.default" || op == "aten.bmm.default" ||
      op == "aten.mm.default") {
    return lastDimension(*first);
  }
  if (op == "aten.addmm.default" || op == "aten.baddbmm.default") return lastDimension(*second);
  // Two products: queries and keys, then attention weights and values.
  if (op == "aten.scaled_dot_product_attention.default" && second->shape_size() > 1) {
    return 2 * std::abs(static_cast<double>(second->shape(second->shape_size() - 2)));
  }
  return 0;
}

bool isRecurrent(std::string_view op) {
  return op == "aten.lstm.input" || op == "aten.gru.input" || op == "aten.rnn_tanh.input" ||
         op == "aten.rnn_relu.input";
}

// Each weight of a recurrent layer multiplies once per time step.
double multiplicationsOfRecurrent(const wire::Graph& graph, const wire::Node& node) {
  double weights = 0;
  for (const wire::Argument& argument : node.arguments()) {
    for (const std::uint32_t item : argument.tensors().items()) {
      if (item == 0) continue;  // none; others are values' numbers plus 1
      const wire::Value& value = graph.values(static_cast<int>(item - 1));
      if (isWeight(value) && value.shape_size() == 2) weights += elementsPerSample(value);
    }
  }
  const wire::Value& result = graph.values(static_cast<int>(node.outputs(0)));
  return weights * elementsPerSample(result) / lastDimension(result);
}

}  // namespace

GraphCosts costsOf(const wire::Graph& graph, std::size_t first, std::size_t last) {
  GraphCosts costs;
  for (std::size_t n = first; n < last; ++n) {
    const wire::Node& node = graph.nodes(static_cast<int>(n));
    if (isRecurrent(node.op()) && node.outputs_size() > 0)
      costs.flopsPerSample += 2 * multiplicationsOfRecurrent(graph, node);
    if (node.outputs_size() != 1) continue;
    const wire::Value& result = graph.values(static_cast<int>(node.outputs(0)));
    costs.flopsPerSample += 2 * multiplicationsPerResult(graph, node) * elementsPerSample(result);
  }
  for (const std::uint32_t id : weightsReadBetween(graph, first, last)) {
    const wire::Value& value = graph.values(static_cast<int>(id));
    if (value.kind() == wire::Value::PARAMETER) costs.parameters += elementsPerSample(value);
    costs.weightBytes += bytesPerSample(value);
  }
  return costs;
}

}  // namespace cleave
