// Graphs with an evaluation graph: checked, cut, adapted and run.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/graph/adapters.h"
#include "common/graph/cuts.h"
#include "common/graph/packed_graph.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_program.h"
#include "tests/support/models/graph_builder.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

std::string errorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.code() + ": " + error.what();
  }
  return "";
}

// What the graphs of one mode do differently.
struct Mode {
  bool isTraining = true;
  std::string secondReads = "second.weight";
  bool readsMask = false;  // in `third`
  std::int64_t width = 4;  // of the tensor after `second`
};

// Four modules, each a product with a parameter. In training, `drop` multiplies by random numbers;
// in evaluation, `third` multiplies by a constant.
wire::Graph graphOf(const Mode& mode) {
  GraphBuilder built;
  std::uint32_t x = built.input("x", "f32", {-1, 4});
  const std::uint32_t mask = built.input("mask", "i64", {-1, 4});
  std::map<std::string, std::uint32_t> weights;
  for (const char* name : {"first.weight", "second.weight", "third.weight", "last.weight"}) {
    weights[name] = built.weight(wire::Value::PARAMETER, name, {4});
  }
  const auto multiply = [&](const std::string& module, std::uint32_t by, std::int64_t width = 4) {
    x = built.node("aten.mul.Tensor", module, {x, by}, "f32", {-1, width});
  };
  multiply("first", weights.at("first.weight"));
  if (mode.isTraining) multiply("drop", built.node("aten.rand_like.default", "drop", {x}));
  multiply("second", weights.at(mode.secondReads), mode.width);
  multiply("third", weights.at("third.weight"));
  if (mode.readsMask) multiply("third", mask);
  if (!mode.isTraining) {
    multiply("third", built.weight(wire::Value::CONSTANT, "evaluation.scale", {4}));
  }
  multiply("last", weights.at("last.weight"));
  return built.finish(x);
}

wire::Graph withEvaluation(const Mode& training, Mode evaluation) {
  evaluation.isTraining = false;
  wire::Graph graph = graphOf(training);
  setEvaluation(graph, graphOf(evaluation));
  return graph;
}

GraphParts splitAt(const wire::Graph& graph, const std::string& first, const std::string& second) {
  const GraphCuts cuts(graph);
  return cuts.split({cuts.find(first), cuts.find(second)});
}

bool hasOperator(const wire::Graph& graph, const std::string& op) {
  return std::ranges::any_of(graph.nodes(), [&](const auto& node) { return node.op() == op; });
}

TEST_CASE("each part has a part of both graphs, and the weights of both") {
  const wire::Graph graph = withEvaluation({}, {});
  checkGraph(graph, "graph");
  const GraphParts parts = splitAt(graph, "first", "third");
  std::multiset<std::string> names;
  for (const GraphPart* part : parts.all()) {
    checkGraph(part->graph, "a part");
    REQUIRE(part->graph.has_evaluation());
    for (const wire::Value& value : part->graph.values()) {
      if (isWeight(value)) names.insert(value.name());
    }
  }
  CHECK(names == std::multiset<std::string>{"evaluation.scale", "first.weight", "last.weight",
                                            "second.weight", "third.weight"});
  const wire::Graph& body = parts.bodies.front().graph;
  CHECK(hasOperator(body, "aten.rand_like.default"));
  CHECK_FALSE(hasOperator(body.evaluation(), "aten.rand_like.default"));
  CHECK(unpackGraph(packGraph(body)).SerializeAsString() == body.SerializeAsString());
}

TEST_CASE("a cut must be crossed by tensors of the same shapes in both modes") {
  const wire::Graph graph = withEvaluation({}, {.width = 1});
  const GraphCuts cuts(graph);
  CHECK(cuts.find("first").obstacle.empty());
  CHECK(cuts.find("drop").obstacle == "in evaluation mode, nothing crosses");
  CHECK(cuts.find("second").obstacle == "[samples, 1] crosses in evaluation mode");
  CHECK_THAT(errorOf([&] { splitAt(graph, "first", "second"); }),
             Contains("bad-cuts: the model cannot be cut after second: [samples, 1]"));
  wire::Graph reversed = graphOf({.isTraining = false});
  setEvaluation(reversed, graphOf({}));
  CHECK_THAT(errorOf([&] { splitAt(reversed, "first", "drop"); }),
             Contains("uses the module 'drop' only in evaluation mode"));
  CHECK(GraphCuts(reversed).onlyInEvaluation() == std::vector<std::string>{"drop"});
  CHECK(cuts.onlyInEvaluation().empty());
}

TEST_CASE("an integer input that a body needs in one mode only is sent in both") {
  for (const auto& [inTraining, inEvaluation] : {std::pair{true, false}, {false, true}}) {
    const wire::Graph graph =
        withEvaluation({.readsMask = inTraining}, {.readsMask = inEvaluation});
    const GraphParts parts = splitAt(graph, "first", "third");
    CHECK(parts.head.batchInputs == std::vector<std::size_t>{0, 1});
    const wire::Graph& body = parts.bodies.front().graph;
    REQUIRE(body.inputs_size() == 2);
    CHECK(body.evaluation().inputs_size() == 2);
    CHECK(body.values(static_cast<int>(body.inputs(1))).name() == "mask");
    CHECK(parts.head.graph.evaluation().outputs_size() == 2);
  }
}

TEST_CASE("a parameter cannot be in the body in one mode and on the client in the other") {
  const wire::Graph graph = withEvaluation({}, {.secondReads = "last.weight"});
  CHECK_THAT(errorOf([&] { splitAt(graph, "first", "third"); }),
             Contains("last.weight is used on both sides of a cut"));
}

TEST_CASE("a parameter that only evaluation uses has no gradient") {
  const wire::Graph graph =
      withEvaluation({.secondReads = "first.weight"}, {.secondReads = "second.weight"});
  const GraphCuts cuts(graph);
  const GraphParts parts = cuts.split({cuts.find("second"), cuts.find("third")});
  for (const wire::Value& value : parts.head.graph.values()) {
    if (isWeight(value)) CHECK(value.trainable() == (value.name() == "first.weight"));
  }
}

TEST_CASE("an evaluation graph that does not fit its graph is refused") {
  const auto refused = [](const std::string& says,
                          const std::function<void(wire::Graph & evaluation)>& edit) {
    wire::Graph graph = withEvaluation({}, {});
    edit(*graph.mutable_evaluation());
    CHECK_THAT(errorOf([&] { checkGraph(graph, "a graph"); }),
               Contains("bad-graph: a graph in evaluation mode") && Contains(says));
  };
  const auto valueOf = [](wire::Graph& graph, std::uint32_t id) {
    return graph.mutable_values(static_cast<int>(id));
  };
  refused("evaluation graph of its own",
          [](wire::Graph& graph) { *graph.mutable_evaluation() = graphOf({}); });
  refused("inputs or outputs",
          [&](wire::Graph& graph) { valueOf(graph, graph.inputs(0))->set_shape(1, 5); });
  refused("inputs or outputs",
          [&](wire::Graph& graph) { valueOf(graph, graph.outputs(0))->set_shape(1, 5); });
  refused("inputs or outputs", [&](wire::Graph& graph) { graph.mutable_inputs()->RemoveLast(); });
  refused("other.weight is missing in training mode", [](wire::Graph& graph) {
    for (wire::Value& value : *graph.mutable_values()) {
      if (value.name() == "first.weight") value.set_name("other.weight");
    }
  });
  refused("first.weight is missing in training mode, or has another shape", [](wire::Graph& graph) {
    for (wire::Value& value : *graph.mutable_values()) {
      if (value.name() == "first.weight") value.set_shape(0, 5);
    }
  });
  refused("is not allowed",
          [](wire::Graph& graph) { graph.mutable_nodes(0)->set_op("aten.from_file.default"); });
}

// Adds `weight` and a linear layer that reads it; returns the layer's result.
std::uint32_t addLinear(GraphBuilder& built, std::uint32_t x) {
  const std::uint32_t weight = built.weight(wire::Value::PARAMETER, "layer.weight", {4, 4});
  const std::uint32_t y = built.node("aten.linear.default", "layer", {x, weight});
  wire::Node& node = *built.graph.mutable_nodes(built.graph.nodes_size() - 1);
  node.mutable_arguments(0)->set_name("input");
  node.mutable_arguments(1)->set_name("weight");
  return y;
}

TEST_CASE("adapters are added to both graphs, with dropout in training only") {
  GraphBuilder training, evaluation;
  for (GraphBuilder* built : {&training, &evaluation}) {
    built->finish(addLinear(*built, built->input("x", "f32", {-1, 4})));
  }
  setEvaluation(training.graph, evaluation.graph);
  LoraSpec lora;
  lora.rank = 2;
  lora.dropout = 0.5;
  lora.targets = {"layer"};
  CHECK(addAdapters(training.graph, lora) == std::vector<std::string>{"layer"});
  checkGraph(training.graph, "adapted");
  CHECK(training.graph.nodes_size() == 6);
  CHECK(training.graph.evaluation().nodes_size() == 5);
  CHECK(hasOperator(training.graph, "aten.dropout.default"));
  CHECK_FALSE(hasOperator(training.graph.evaluation(), "aten.dropout.default"));
}

BlockContext contextOf(Phase phase, std::uint64_t seed = 1) {
  return {seed, {phase, 1, 0, {1, 3}}, nullptr};
}

TEST_CASE("training runs the graph, and evaluation runs the evaluation graph, whatever the seed") {
  const GraphProgram program(withEvaluation({}, {}));
  CHECK(program.drawnInEvaluation().empty());
  TensorList weights;
  for (const ParameterSpec& weight : program.weights()) {
    weights.push_back(at::full({4}, weight.name == "evaluation.scale" ? 5 : 2));
  }
  const TensorList inputs = {at::ones({3, 4}), at::ones({3, 4}, at::kLong)};
  for (const std::uint64_t seed : {1, 2}) {
    const at::Tensor evaluated = program.run(inputs, weights, contextOf(Phase::eval, seed)).front();
    CHECK(at::equal(evaluated, at::full({3, 4}, 16.0 * 5)));
  }
  const at::Tensor trained = program.run(inputs, weights, contextOf(Phase::train)).front();
  CHECK(trained.max().item<double>() <= 16);
  CHECK_FALSE(at::equal(trained, program.run(inputs, weights, contextOf(Phase::train, 2)).front()));
}

TEST_CASE("without an evaluation graph, the random operators of evaluations are known") {
  const std::vector<std::string> drawn = GraphProgram(graphOf({})).drawnInEvaluation();
  REQUIRE(drawn.size() == 1);
  CHECK_THAT(drawn.front(), Contains("aten.rand_like.default") && Contains("in module 'drop'"));
  CHECK(GraphProgram(graphOf({.isTraining = false})).drawnInEvaluation().empty());
}

TEST_CASE("a batch norm that trains in evaluation mode leaves its statistics unchanged") {
  GraphBuilder training, evaluation;
  for (GraphBuilder* built : {&training, &evaluation}) {
    const std::uint32_t x = built->input("x", "f32", {-1, 4});
    std::vector<std::uint32_t> tensors = {x};
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      const auto kind = tensors.size() < 3 ? wire::Value::PARAMETER : wire::Value::BUFFER;
      tensors.push_back(built->weight(kind, "norm." + std::string(name), {4}));
    }
    const std::uint32_t y = built->node("aten.batch_norm.default", "norm", tensors);
    wire::Node& node = *built->graph.mutable_nodes(0);
    const char* names[] = {"input", "weight", "bias", "running_mean", "running_var"};
    for (int n = 0; n < 5; ++n) node.mutable_arguments(n)->set_name(names[n]);
    const auto add = [&](const std::string& name) {
      wire::Argument& argument = *node.add_arguments();
      argument.set_name(name);
      return &argument;
    };
    add("training")->set_flag(true);
    add("momentum")->set_number(0.1);
    add("eps")->set_number(1e-5);
    built->finish(y);
  }
  setEvaluation(training.graph, evaluation.graph);
  const GraphProgram program(training.graph);
  const TensorList weights = {at::ones({4}), at::zeros({4}), at::zeros({4}), at::ones({4})};
  const at::Tensor x = at::full({3, 4}, 7.0);
  const at::Tensor y = program.run({x}, weights, contextOf(Phase::eval)).front();
  CHECK(y.abs().max().item<double>() < 0.01);  // normalized by the batch's own mean
  CHECK(at::equal(weights[2], at::zeros({4})));
  CHECK(at::equal(weights[3], at::ones({4})));
}

TEST_CASE("the memory of an evaluation is that of the evaluation graph") {
  const wire::Graph training = graphOf({});
  wire::Graph larger = training, smaller = training;
  setEvaluation(larger, graphOf({.isTraining = false, .readsMask = true, .width = 4000}));
  setEvaluation(smaller, graphOf({.isTraining = false}));
  const BlockSpec plain = blockOfGraph("block", training);
  const auto inference = [](const wire::Graph& graph) {
    return blockOfGraph("block", graph).passes.value().inference;
  };
  CHECK(blockOfGraph("block", larger).savedPerSample == plain.savedPerSample);
  CHECK(inference(smaller) <= plain.passes.value().inference);
  CHECK(inference(larger) > plain.passes.value().inference + 3000);
}

}  // namespace
}  // namespace cleave::test
