// Graphs of one operator, for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/graph/graph.h"

namespace cleave::test {

inline wire::Argument argumentOf(const std::string& name,
                                 const std::function<void(wire::Argument&)>& set) {
  wire::Argument argument;
  argument.set_name(name);
  set(argument);
  return argument;
}

inline wire::Argument sizes(const std::string& name, const std::vector<std::int64_t>& values) {
  wire::Argument argument;
  argument.set_name(name);
  for (const std::int64_t value : values) {
    argument.mutable_sizes()->add_items()->set_integer(value);
  }
  return argument;
}

// A graph of one operator on a value of [samples, 4], whose first argument is that value.
inline wire::Graph graphOf(const std::string& op, const std::vector<wire::Argument>& more = {}) {
  wire::Graph graph;
  for (int v = 0; v < 2; ++v) {
    wire::Value& value = *graph.add_values();
    value.set_dtype("f32");
    value.add_shape(-1);
    value.add_shape(4);
  }
  graph.add_inputs(0);
  graph.add_outputs(1);
  wire::Node& node = *graph.add_nodes();
  node.set_op(op);
  node.set_name("node");
  wire::Argument& self = *node.add_arguments();
  self.set_name(op == "aten.dropout.default" ? "input" : "self");
  self.set_tensor(0);
  for (const wire::Argument& argument : more) *node.add_arguments() = argument;
  node.add_outputs(1);
  checkGraph(graph, "graph");
  return graph;
}

}  // namespace cleave::test
