// A body whose graph computes something else than it declares.
#include <ATen/ops/ones.h>

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>

#include "common/model/graph_blocks.h"
#include "common/model/stage.h"
#include "common/model/torch_tensor.h"
#include "tests/error_code.h"

namespace cleave::test {
namespace {

constexpr MicroBatch kAt{Phase::train, 1, 0, 1, 2};

// A graph of one operator on [samples, 4] that declares f32 [samples, 4], with an argument.
wire::Graph graphOf(const std::string& op,
                    const std::function<void(wire::Argument&)>& argument = {}) {
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
  self.set_name("self");
  self.set_tensor(0);
  if (argument) argument(*node.add_arguments());
  node.add_outputs(1);
  checkGraph(graph, "graph");
  return graph;
}

StageOptions optionsOf(const wire::Graph& graph) {
  StageOptions options;
  options.model = {"graph", {}, {4}, 4};
  options.model.graphBlocks = blocksOfBody(graph);
  options.cuts = {1, 2};
  return options;
}

TensorBundle inputs() {
  TensorBundle bundle;
  bundle.push_back(
      toPayload(canonical(at::ones({2, 4}), MemoryOrder::contiguous), MemoryOrder::contiguous));
  return bundle;
}

std::string forwardError(const wire::Graph& graph, Phase phase) {
  BodyStage body(optionsOf(graph), {});
  MicroBatch at = kAt;
  at.phase = phase;
  const auto forward = [&] { body.forward(at, inputs()); };
  const std::string code = errorCode(forward);
  return code.empty() ? "" : code + ": " + errorText(forward);
}

TEST_CASE("tensors of a body that are not those that its graph declares are refused") {
  const auto sizes = [](std::int64_t a, std::int64_t b) {
    return [a, b](wire::Argument& argument) {
      argument.set_name("repeats");
      argument.mutable_sizes()->add_items()->set_integer(a);
      argument.mutable_sizes()->add_items()->set_integer(b);
    };
  };
  const auto dtype = [](wire::Argument& argument) {
    argument.set_name("dtype");
    argument.set_dtype("i64");
  };
  const std::pair<wire::Graph, std::string> kCases[] = {
      {graphOf("aten.repeat.default", sizes(100, 1)), "Float [200, 4]"},
      {graphOf("aten.repeat.default", sizes(1, 2)), "Float [2, 8]"},
      {graphOf("aten.repeat.default", sizes(0, 1)), "Float [0, 4]"},
      {graphOf("aten.sum.default"), "Float []"},
      {graphOf("aten.to.dtype", dtype), "Long [2, 4]"},
      {graphOf("aten.isnan.default"), "Bool [2, 4]"}};
  for (const auto& [graph, words] : kCases) {
    for (const Phase phase : {Phase::train, Phase::eval}) {
      CHECK_THAT(forwardError(graph, phase),
                 Catch::Contains("bad-graph: the model computed " + words + " as activation/1") &&
                     Catch::Contains("declares f32[2, 4]"));
    }
  }
  CHECK(forwardError(graphOf("aten.relu.default"), Phase::train) == "");
  CHECK(forwardError(graphOf("aten.relu.default"), Phase::eval) == "");
}

TEST_CASE("a body's checkpoint ends its forward") {
  StageOptions options = optionsOf(graphOf("aten.relu.default"));
  options.checkpoint = [] { throw RunError("action-too-long", "enough"); };
  BodyStage body(options, {});
  CHECK(errorCode([&] { body.forward(kAt, inputs()); }) == "action-too-long");
}

}  // namespace
}  // namespace cleave::test
