// Graphs for tests, built node by node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/graph/graph.h"

namespace cleave::test {

struct GraphBuilder {
  std::uint32_t value(const std::string& dtype, const std::vector<std::int64_t>& shape) {
    wire::Value& each = *graph.add_values();
    each.set_dtype(dtype);
    each.mutable_shape()->Add(shape.begin(), shape.end());
    return static_cast<std::uint32_t>(graph.values_size() - 1);
  }
  std::uint32_t input(const std::string& name, const std::string& dtype,
                      const std::vector<std::int64_t>& shape) {
    const std::uint32_t id = value(dtype, shape);
    graph.mutable_values(static_cast<int>(id))->set_name(name);
    graph.add_inputs(id);
    return id;
  }
  std::uint32_t node(const std::string& op, const std::string& module,
                     const std::vector<std::uint32_t>& tensors, const std::string& dtype = "f32",
                     const std::vector<std::int64_t>& shape = {-1, 4}) {
    wire::Node& each = *graph.add_nodes();
    each.set_op(op);
    each.set_name("node" + std::to_string(graph.nodes_size()));
    each.set_module(module);
    for (const std::uint32_t tensor : tensors) {
      wire::Argument& argument = *each.add_arguments();
      argument.set_name(each.arguments_size() == 1 ? "self" : "other");
      argument.set_tensor(tensor);
    }
    each.add_outputs(value(dtype, shape));
    return each.outputs(0);
  }
  std::uint32_t weight(wire::Value::Kind kind, const std::string& name,
                       const std::vector<std::int64_t>& shape) {
    const std::uint32_t id = value("f32", shape);
    wire::Value& each = *graph.mutable_values(static_cast<int>(id));
    each.set_kind(kind);
    each.set_name(name);
    each.set_trainable(kind == wire::Value::PARAMETER);
    return id;
  }
  wire::Graph finish(std::uint32_t output) {
    graph.add_outputs(output);
    checkGraph(graph, "graph");
    return graph;
  }
  wire::Graph graph;
};

}  // namespace cleave::test
