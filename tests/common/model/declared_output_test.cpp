// A body whose graph computes something else than it declares.
#include <ATen/ops/ones.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "common/model/graph/graph_blocks.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"
#include "tests/support/error_code.h"
#include "tests/support/models/operator_graph.h"

namespace cleave::test {
namespace {

constexpr MicroBatch kAt{Phase::train, 1, 0, {1, 2}};

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
  BodyStage body(optionsOf(graph));
  MicroBatch at = kAt;
  at.phase = phase;
  const auto forward = [&] { body.forward(at, inputs()); };
  const std::string code = errorCode(forward);
  return code.empty() ? "" : code + ": " + errorText(forward);
}

TEST_CASE("tensors of a body that are not those that its graph declares are refused") {
  const wire::Argument toInteger =
      argumentOf("dtype", [](wire::Argument& argument) { argument.set_dtype("i64"); });
  const std::pair<wire::Graph, std::string> kCases[] = {
      {graphOf("aten.repeat.default", {sizes("repeats", {100, 1})}), "Float [200, 4]"},
      {graphOf("aten.repeat.default", {sizes("repeats", {1, 2})}), "Float [2, 8]"},
      {graphOf("aten.repeat.default", {sizes("repeats", {0, 1})}), "Float [0, 4]"},
      {graphOf("aten.sum.default"), "Float []"},
      {graphOf("aten.to.dtype", {toInteger}), "Long [2, 4]"},
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
  BodyStage body(options);
  CHECK(errorCode([&] { body.forward(kAt, inputs()); }) == "action-too-long");
}

}  // namespace
}  // namespace cleave::test
