#include "common/model/graph/graph_program.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <caffe2/serialize/inline_container.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"
#include "common/model/stage/stage.h"
#include "tests/support/models/operator_graph.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// Written by python/tests/make_fixtures.py.
const std::string kTiny = CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2";

BlockContext contextOf(Phase phase, std::uint64_t step = 1, std::uint32_t i = 0,
                       std::vector<NormStatistics>* statistics = nullptr) {
  return {7, {phase, step, i, {4, 16}}, statistics};
}

struct Program {
  explicit Program(const wire::Graph& graph, const std::vector<NamedTensor>& weights = {})
      : program(graph) {
    for (const ParameterSpec& row : program.weights()) {
      for (const NamedTensor& weight : weights) {
        if (weight.name == row.name) tensors.push_back(weight.tensor);
      }
    }
  }
  at::Tensor run(const at::Tensor& x, const BlockContext& context) const {
    return program.run({x}, tensors, context).front();
  }
  GraphProgram program;
  std::vector<at::Tensor> tensors;
};

wire::Argument number(const std::string& name, double value) {
  wire::Argument argument;
  argument.set_name(name);
  argument.set_number(value);
  return argument;
}

wire::Argument flag(const std::string& name, bool value) {
  wire::Argument argument;
  argument.set_name(name);
  argument.set_flag(value);
  return argument;
}

template <typename Error>
std::string errorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.code() + ": " + error.what();
  }
  return "";
}

TEST_CASE("batch norms record their statistics without changing buffers") {
  const GraphFile file(kTiny);
  const Program tiny(file.graph(), file.readWeights());
  REQUIRE(tiny.program.norms().size() == 1);
  const NormRow norm = tiny.program.norms().front();
  CHECK(norm.momentum == 0.1);
  CHECK(norm.valuesPerSample == 64);
  CHECK(tiny.program.weights()[norm.mean].name == "norm.running_mean");
  CHECK(tiny.program.weights()[norm.variance].name == "norm.running_var");
  REQUIRE(norm.count);
  CHECK(tiny.program.weights()[*norm.count].name == "norm.num_batches_tracked");
  const at::Tensor before = tiny.tensors[norm.mean].clone();
  std::vector<NormStatistics> statistics;
  tiny.run(at::randn({4, 1, 8, 8}), contextOf(Phase::train, 1, 0, &statistics));
  REQUIRE(statistics.size() == 1);
  CHECK(statistics[0].mean.sizes() == at::IntArrayRef{4});
  CHECK(at::equal(tiny.tensors[norm.mean], before));
  statistics.clear();
  tiny.run(at::randn({4, 1, 8, 8}), contextOf(Phase::eval, 1, 0, &statistics));
  CHECK(statistics.empty());
}

TEST_CASE("random operators depend on seed, step and micro-batch, and on nothing else") {
  const auto input = [] { return at::ones({8, 4}); };
  const Program dropout(graphOf("aten.dropout.default", {number("p", 0.5), flag("train", true)}));
  const at::Tensor first = dropout.run(input(), contextOf(Phase::train, 3, 1));
  at::randn({100});
  CHECK(at::equal(first, dropout.run(input(), contextOf(Phase::train, 3, 1))));
  CHECK_FALSE(at::equal(first, dropout.run(input(), contextOf(Phase::train, 3, 2))));
  CHECK_FALSE(at::equal(first, dropout.run(input(), contextOf(Phase::train, 4, 1))));
  CHECK(at::equal(input(), dropout.run(input(), contextOf(Phase::eval))));
  // Without a probability, nothing is drawn, and no generator is seeded.
  at::manual_seed(5);
  const Program none(graphOf("aten.dropout.default", {number("p", 0), flag("train", true)}));
  CHECK(at::equal(input(), none.run(input(), contextOf(Phase::train))));
  CHECK(at::globalContext().defaultGenerator(at::kCPU).current_seed() == 5);

  // The mask of torchvision's stochastic depth, which is later divided by p.
  const Program mask(graphOf("aten.bernoulli_.float", {number("p", 0.75)}));
  CHECK(at::equal(mask.run(input(), contextOf(Phase::eval)), at::ones({8, 4}).mul(0.75)));
  CHECK(mask.run(input(), contextOf(Phase::train)).sum().item<double>() < 32);
}

TEST_CASE("threads that draw at the same time do not disturb each other") {
  const auto input = [] { return at::ones({64, 64}); };
  const Program dropout(graphOf("aten.dropout.default", {number("p", 0.5), flag("train", true)}));
  std::atomic<int> differences = 0;
  {
    std::map<std::uint32_t, at::Tensor> alone;
    for (std::uint32_t i = 0; i < 4; ++i) {
      alone[i] = dropout.run(input(), contextOf(Phase::train, 1, i));
    }
    std::vector<std::jthread> threads;
    for (const auto& [i, expected] : alone) {
      threads.emplace_back([&, context = contextOf(Phase::train, 1, i), expected = expected] {
        for (int n = 0; n < 500; ++n) {
          if (!at::equal(expected, dropout.run(input(), context))) ++differences;
        }
      });
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("running a graph does not change its inputs") {
  const Program relu(graphOf("aten.relu_.default"));
  const at::Tensor x = at::ones({2, 4}).neg().set_requires_grad(true);
  const at::Tensor y = relu.run(x, contextOf(Phase::train));
  y.sum().backward();
  CHECK(at::equal(x.detach(), at::ones({2, 4}).neg()));
  CHECK(x.grad().sum().item<double>() == 0);
}

// A weight, and a node that changes its view in place.
wire::Graph graphThatChanges(const std::string& view) {
  wire::Graph graph = graphOf("aten.relu.default");
  const auto add = [&](wire::Value::Kind kind) {
    wire::Value& value = *graph.add_values();
    value.set_kind(kind);
    value.set_name("value" + std::to_string(graph.values_size()));
    value.set_dtype("f32");
    value.add_shape(kind == wire::Value::RESULT ? -1 : 4);
    value.add_shape(4);
    return static_cast<std::uint32_t>(graph.values_size() - 1);
  };
  std::uint32_t changed = add(wire::Value::BUFFER);
  if (!view.empty()) {
    wire::Node& node = *graph.add_nodes();
    node.set_op(view);
    node.set_name("view");
    wire::Argument& equation = *node.add_arguments();
    equation.set_name("equation");
    equation.set_text("ij->ji");
    wire::Argument& tensors = *node.add_arguments();
    tensors.set_name("tensors");
    tensors.mutable_tensors()->add_items(changed + 1);
    changed = add(wire::Value::RESULT);
    node.add_outputs(changed);
  }
  wire::Node& node = *graph.add_nodes();
  node.set_op("aten.relu_.default");
  node.set_name("change");
  wire::Argument& self = *node.add_arguments();
  self.set_name("self");
  self.set_tensor(changed);
  node.add_outputs(add(wire::Value::RESULT));
  return graph;
}

TEST_CASE("operators that would change a weight are refused, also through a view") {
  for (const char* const view : {"", "aten.einsum.default"}) {
    const wire::Graph graph = graphThatChanges(view);
    CHECK_THAT(errorOf<UsageError>([&] { checkGraph(graph, "graph"); }),
               Contains("bad-graph") && Contains("changes value3 in the forward pass"));
    // Also if the graph's check did not find it.
    Program program(graph);
    program.tensors = {at::ones({4, 4}).neg()};
    CHECK_THAT(errorOf<UsageError>([&] {
                 program.run(at::ones({2, 4}), contextOf(Phase::train));
               }),
               Contains("bad-graph") && Contains("aten.relu_.default (change)") &&
                   Contains("changes a weight or an input"));
    CHECK(at::equal(program.tensors[0], at::ones({4, 4}).neg()));
  }
}

TEST_CASE("a weight that is an output is copied, because an update changes it") {
  wire::Graph graph = graphOf("aten.relu.default");
  wire::Value& weight = *graph.add_values();
  weight.set_kind(wire::Value::BUFFER);
  weight.set_name("weight");
  weight.set_dtype("f32");
  weight.add_shape(2);
  wire::Argument& self = *graph.mutable_nodes(0)->mutable_arguments(0);
  graph.mutable_nodes(0)->set_op("aten.alias.default");
  self.set_tensor(2);
  Program program(graph);
  program.tensors = {at::ones({2})};
  const at::Tensor output = program.run(at::ones({2, 4}), contextOf(Phase::eval));
  program.tensors[0].fill_(5);
  CHECK(at::equal(output, at::ones({2})));
}

TEST_CASE("the gradient of a sign has memory") {
  const Program sign(graphOf("aten.sgn.default"));
  const at::Tensor x = at::ones({2, 4}).set_requires_grad(true);
  sign.run(x, contextOf(Phase::train)).sum().backward();
  CHECK_FALSE(x.grad()._is_zerotensor());
  CHECK(at::equal(x.grad(), at::ones({2, 4}).zero_()));
}

TEST_CASE("an action can end between two operators") {
  wire::Graph graph = graphOf("aten.relu.default");
  const Program relu(graph);
  int calls = 0;
  const std::function<void()> checkpoint = [&] {
    ++calls;
    if (calls > 1) throw RunError("action-too-long", "enough");
  };
  BlockContext context = contextOf(Phase::train);
  context.checkpoint = &checkpoint;
  relu.run(at::ones({2, 4}), context);
  CHECK(calls == 1);
  CHECK(errorOf<RunError>([&] {
          relu.run(at::ones({2, 4}), context);
        }) == "action-too-long: enough");
}

TEST_CASE("arguments that do not fit their operator are refused") {
  CHECK_THAT(errorOf<UsageError>([] { Program(graphOf("aten.dropout.default")); }),
             Contains("bad-graph") && Contains("has no argument"));
  CHECK_THAT(errorOf<UsageError>([] { Program(graphOf("aten.linear.default")); }),
             Contains("has no argument"));
}

TEST_CASE("hostile arguments are refused before anything runs") {
  const auto integer = [](std::int64_t value) {
    return [value](wire::Argument& argument) { argument.set_integer(value); };
  };
  const auto refused = [](const wire::Graph& graph, const std::string& words) {
    CHECK_THAT(errorOf<UsageError>([&] { Program{graph}; }),
               Contains("bad-graph") && Contains(words));
  };
  // A number instead of a dtype, a layout or a flag.
  refused(graphOf("aten.to.dtype", {argumentOf("dtype", integer(-1))}), "'dtype' in this form");
  refused(graphOf("aten.zeros_like.default", {argumentOf("layout", integer(1))}),
          "'layout' in this form");
  refused(graphOf("aten.dropout.default", {number("p", 0.5), argumentOf("train", integer(1))}),
          "'train' in this form");
  // An argument that the operator does not have.
  refused(graphOf("aten.relu.default", {number("bogus", 1)}), "has no argument 'bogus'");
  // A list with a tensor that does not exist.
  wire::Graph list = graphOf("aten.relu.default");
  wire::Node& cat = *list.mutable_nodes(0);
  cat.set_op("aten.cat.default");
  cat.mutable_arguments(0)->set_name("tensors");
  cat.mutable_arguments(0)->mutable_tensors()->add_items(0);
  refused(list, "'tensors' in this form");
  // The size of a value that is not a tensor.
  wire::Graph size = graphOf("aten.relu.default");
  wire::Node& of = *size.add_nodes();
  of.set_op("size.of");
  of.set_name("of");
  of.mutable_arguments()->Add(sizes("self", {3}));
  of.mutable_arguments()->Add(argumentOf("dim", integer(0)));
  size.add_values()->set_kind(wire::Value::SIZE);
  of.add_outputs(2);
  checkGraph(size, "graph");
  refused(size, "wrong type");
  // The check of in-place changes relies on argument positions, so the tensor must come first.
  wire::Graph inPlace = graphOf("aten.relu_.default");
  inPlace.mutable_nodes(0)->mutable_arguments(0)->set_name("other");
  refused(inPlace, "has no argument 'other'");
}

TEST_CASE("views with too many elements and lists of the wrong length are refused") {
  const auto refusedAtRun = [](const wire::Graph& graph) {
    const Program program(graph);
    CHECK_THAT(errorOf<UsageError>([&] {
                 program.run(at::ones({2, 4}), contextOf(Phase::train));
               }),
               Contains("bad-graph"));
  };
  refusedAtRun(graphOf("aten.expand.default", {sizes("size", {1 << 20, 1 << 20, 2, 4})}));
  wire::Graph unbind = graphOf("aten.unbind.int");
  unbind.mutable_nodes(0)->set_is_list(true);
  refusedAtRun(unbind);  // the list has two tensors instead of one
}

// Appends a node whose result has the shape [samples, 4]; returns the result's number.
std::uint32_t append(wire::Graph& graph, const std::string& op,
                     const std::vector<wire::Argument>& arguments,
                     const std::string& dtype = "f32") {
  const auto id = static_cast<std::uint32_t>(graph.values_size());
  wire::Value& value = *graph.add_values();
  if (dtype.empty()) {
    value.set_kind(wire::Value::SIZE);
  } else {
    value.set_dtype(dtype);
    value.add_shape(-1);
    value.add_shape(4);
  }
  wire::Node& node = *graph.add_nodes();
  node.set_op(op);
  node.set_name("node" + std::to_string(id));
  for (const wire::Argument& argument : arguments) *node.add_arguments() = argument;
  node.add_outputs(id);
  return id;
}

wire::Argument tensor(const std::string& name, std::uint32_t id) {
  return argumentOf(name, [&](wire::Argument& argument) { argument.set_tensor(id); });
}
wire::Argument integer(const std::string& name, std::int64_t value) {
  return argumentOf(name, [&](wire::Argument& argument) { argument.set_integer(value); });
}
wire::Argument size(const std::string& name, std::uint32_t id) {
  return argumentOf(name, [&](wire::Argument& argument) { argument.set_size(id); });
}

// A graph whose only value is its input, [samples, 4].
wire::Graph emptyGraph() {
  wire::Graph graph;
  graph.add_values()->set_dtype("f32");
  graph.mutable_values(0)->add_shape(-1);
  graph.mutable_values(0)->add_shape(4);
  graph.add_inputs(0);
  return graph;
}

at::Tensor resultOf(wire::Graph& graph, std::uint32_t output, const at::Tensor& x) {
  graph.add_outputs(output);
  checkGraph(graph, "graph");
  return Program(graph).run(x, contextOf(Phase::train, 3, 1));
}

TEST_CASE("sizes are computed as in Python, with integers and with numbers") {
  const at::Tensor x = at::ones({3, 4});
  const auto times = [&](const std::string& op, const std::vector<wire::Argument>& more) {
    wire::Graph graph = emptyGraph();
    std::vector<wire::Argument> arguments = {size("a", append(graph, "size.samples", {}, ""))};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::uint32_t result = append(graph, op, arguments, "");
    const std::uint32_t y =
        append(graph, "aten.mul.Tensor", {tensor("self", 0), size("other", result)});
    return resultOf(graph, y, x)[0][0].item<double>();
  };
  CHECK(times("size.truediv", {integer("b", 2)}) == 1.5);
  CHECK(times("size.div", {integer("b", 2)}) == 1);
  CHECK(times("size.div", {number("b", 2)}) == 1);
  CHECK(times("size.pow", {integer("b", 2)}) == 9);
  CHECK(times("size.pow", {number("b", 0.5)}) == Approx(std::sqrt(3.0)));
  CHECK(times("size.pow", {integer("b", -1)}) == Approx(1.0 / 3));
  CHECK(times("size.min", {integer("b", 2)}) == 2);
  CHECK(times("size.max", {integer("b", 8)}) == 8);
  CHECK(times("size.mul", {number("b", 0.5)}) == 1.5);
  CHECK(times("size.float", {}) == 3);
  wire::Graph counted = emptyGraph();
  const std::uint32_t numel = append(counted, "size.numel", {tensor("self", 0)}, "");
  const std::uint32_t scaled =
      append(counted, "aten.mul.Tensor", {tensor("self", 0), size("other", numel)});
  CHECK(resultOf(counted, scaled, x)[0][0].item<double>() == 12);
  CHECK_THAT(errorOf<UsageError>([&] { times("size.pow", {integer("b", 60)}); }),
             Contains("too large"));
  CHECK_THAT(errorOf<UsageError>([&] { times("size.mod", {number("b", 0.5)}); }),
             Contains("not integers"));
  // The size of a dimension that a tensor does not have.
  wire::Graph missing = emptyGraph();
  const std::uint32_t of = append(missing, "size.of", {tensor("self", 0), integer("dim", 7)}, "");
  const std::uint32_t times7 =
      append(missing, "aten.mul.Tensor", {tensor("self", 0), size("other", of)});
  CHECK_THAT(errorOf<UsageError>([&] { resultOf(missing, times7, x); }),
             Contains("bad-graph") && Contains("dimension 7 of a tensor with 2 dimensions"));
  // A number where LibTorch needs an integer.
  wire::Graph graph = emptyGraph();
  const std::uint32_t samples = append(graph, "size.samples", {}, "");
  const std::uint32_t half =
      append(graph, "size.truediv", {size("a", samples), integer("b", 2)}, "");
  const std::uint32_t cut =
      append(graph, "aten.slice.Tensor", {tensor("self", 0), size("end", half)});
  CHECK_THROWS_AS(resultOf(graph, cut, x), c10::Error);
}

TEST_CASE("arguments with which LibTorch would use other memory are refused") {
  const at::Tensor x = at::ones({2, 4});
  const auto refused = [&](wire::Graph graph, std::uint32_t output, const std::string& words) {
    CHECK_THAT(errorOf<UsageError>([&] { resultOf(graph, output, x); }),
               Contains("bad-graph") && Contains(words));
  };
  wire::Graph triangle = emptyGraph();
  refused(triangle,
          append(triangle, "aten.tril_indices.default",
                 {integer("row", std::int64_t{1} << 62), integer("col", 4)}, "i64"),
          "too large");
  const auto bag = [&](std::int64_t mode, bool flat) {
    wire::Graph graph = emptyGraph();
    std::uint32_t ids = append(graph, "aten.argsort.default", {tensor("self", 0)}, "i64");
    if (flat) ids = append(graph, "aten.ravel.default", {tensor("self", ids)}, "i64");
    const std::uint32_t y = append(
        graph, "aten.embedding_bag.padding_idx",
        {tensor("weight", 0), tensor("indices", ids), tensor("offsets", ids),
         flag("scale_grad_by_freq", false), integer("mode", mode), flag("sparse", false),
         argumentOf("per_sample_weights",
                    [](wire::Argument& argument) { argument.set_none(true); }),
         flag("include_last_offset", false),
         argumentOf("padding_idx", [](wire::Argument& argument) { argument.set_none(true); })});
    return std::pair{graph, y};
  };
  refused(bag(0, true).first, bag(0, true).second, "not ascending positions");
  refused(bag(1000, true).first, bag(1000, true).second, "no list of indices");
  refused(bag(0, false).first, bag(0, false).second, "no list of offsets");
}

TEST_CASE("lists that are longer than the graph says are refused before they are made") {
  const at::Tensor x = at::ones({2, 4});
  const std::pair<std::string, wire::Argument> kOperators[] = {
      {"aten.unsafe_split.Tensor", integer("split_size", 1)},
      {"aten.unsafe_chunk.default", integer("chunks", 1 << 30)},
      {"aten.hsplit.int", integer("sections", 4)},
      {"aten.unsafe_split_with_sizes.default", sizes("split_sizes", {1, 1})}};
  for (const auto& [op, argument] : kOperators) {
    wire::Graph graph = graphOf(op, {argument});
    CHECK_THAT(errorOf<UsageError>([&] { Program{graph}; }), Contains("returns a list"));
    graph.mutable_nodes(0)->set_is_list(true);
    const Program program(graph);
    CHECK_THAT(errorOf<UsageError>([&] { program.run(x, contextOf(Phase::train)); }),
               Contains("as many tensors"));
  }
  wire::Graph relu = graphOf("aten.relu.default");
  relu.mutable_nodes(0)->set_is_list(true);
  CHECK_THAT(errorOf<UsageError>([&] { Program{relu}; }), Contains("does not return a list"));
}

TEST_CASE("an id beyond an embedding's table is named with its sample and the table's size") {
  wire::Graph graph = emptyGraph();
  const std::uint32_t ids = append(graph, "aten.argsort.default", {tensor("self", 0)}, "i64");
  const std::uint32_t y =
      append(graph, "aten.embedding.default", {tensor("weight", 0), tensor("indices", ids)});
  CHECK_THAT(errorOf<UsageError>([&] {
               resultOf(graph, y, at::ones({3, 4}));
             }),
             Contains("bad-index") && Contains("the id 3 of sample 0 in micro-batch 1 of step 3") &&
                 Contains("has 3 rows"));
}

TEST_CASE("an instance norm that trains running statistics is refused") {
  const auto none = [](const std::string& name) {
    return argumentOf(name, [](wire::Argument& argument) { argument.set_none(true); });
  };
  const auto norm = [&](bool trains) {
    wire::Graph graph =
        graphOf("aten.instance_norm.default",
                {none("weight"), none("bias"), tensor("running_mean", 0), tensor("running_var", 0),
                 flag("use_input_stats", trains), number("momentum", 0.1), number("eps", 1e-5)});
    graph.mutable_nodes(0)->mutable_arguments(0)->set_name("input");
    return errorOf<UsageError>([&] { Program{graph}; });
  };
  CHECK_THAT(norm(true), Contains("bad-graph") && Contains("trains running statistics"));
  CHECK(norm(false).empty());
}

TEST_CASE("memory that the graph leaves uninitialised is zero") {
  const Program empty(graphOf("aten.new_empty.default", {sizes("size", {2, 4})}));
  CHECK(empty.run(at::ones({2, 4}), contextOf(Phase::train)).abs().sum().item<double>() == 0);
}

TEST_CASE("a model file that lacks a weight is refused") {
  CHECK_THAT(errorOf<UsageError>([] { GraphFile("/nowhere/model.pt2"); }),
             Contains("no-model-file"));
  CHECK_THAT(errorOf<UsageError>([] { GraphFile(CLEAVE_SOURCE_DIR "/README.md"); }),
             Contains("bad-model-file"));
}

// A path for a model file, which the destructor removes.
class TemporaryModel {
 public:
  TemporaryModel()
      : path_((std::filesystem::temp_directory_path() /
               ("cleave-test-" + std::to_string(::getpid()) + ".pt2"))
                  .string()) {}
  ~TemporaryModel() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  void write(const std::map<std::string, std::string>& records, bool isCompressed = false) const {
    caffe2::serialize::PyTorchStreamWriter writer(path_);
    for (const auto& [name, bytes] : records) {
      writer.writeRecord(name, bytes.data(), bytes.size(), isCompressed);
    }
    writer.writeEndOfFile();
  }

 private:
  std::string path_;
};

TEST_CASE("files of other programs are recognised, and the error says what they are") {
  const auto refused = [](const std::string& says, const std::string& bytes) {
    const TemporaryModel model;
    model.write(bytes);
    CHECK_THAT(errorOf<UsageError>([&] { GraphFile{model.path()}; }),
               Contains("bad-model-file: " + model.path() + " is " + says));
  };
  const auto refusedArchive = [](const std::string& says,
                                 const std::map<std::string, std::string>& records) {
    const TemporaryModel model;
    model.write(records);
    CHECK_THAT(errorOf<UsageError>([&] { GraphFile{model.path()}; }),
               Contains("bad-model-file: " + model.path() + " is " + says));
  };
  refusedArchive("a torch.save file", {{"data.pkl", "pickle"}, {"data/0", "weights"}});
  refusedArchive("a TorchScript file", {{"data.pkl", "pickle"}, {"constants.pkl", "pickle"}});
  refusedArchive("a model compiled by AOTInductor", {{"archive_format", "pt2"}});
  refused("a torch.save file",
          "\x80\x02\x8a\x0al\xfc\x9c"
          "F\xf9 j\xa8P\x19.");
  refused("a safetensors file",
          std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"a\": {\"dtype\": \"F32\"");
  refused("an ONNX file",
          "\x08\x08\x12\x07pytorch\x1a\x05"
          "2.11.0");
  refused("a Keras or other HDF5 file", "\x89HDF\r\n\x1a\n");
  refused("a Keras file",
          std::string("PK\x03\x04") + std::string(22, ' ') + "\x0b   config.json{}");
  refused("a TensorFlow Lite file", std::string("\x1c\0\0\0TFL3", 8));
  refused("a GGUF file", "GGUF\x03");
}

using Json = nlohmann::json;
const std::string kWeights = "data/weights/model_weights_config.json";

// The records of tiny.pt2, except for those that the writer adds.
std::map<std::string, std::string> recordsOfTiny() {
  std::map<std::string, std::string> records;
  caffe2::serialize::PyTorchStreamReader reader(kTiny);
  for (const std::string& name : reader.getAllRecords()) {
    const bool isOwn = name.starts_with("data/") || name.starts_with("models/");
    if (!isOwn && !name.starts_with("extra/")) continue;
    const auto [data, size] = reader.getRecord(name);
    records[name] = std::string(static_cast<const char*>(data.get()), size);
  }
  return records;
}

// Returns the error of reading the file, "" if there is none. Any other exception fails the test.
std::string errorOfReading(const std::string& path) {
  try {
    const GraphFile file(path);
    file.readWeights();
  } catch (const UsageError& error) {
    CHECK(error.exitCode() == 2);
    CHECK_FALSE(error.hint().empty());
    return error.code() + ": " + error.what();
  }
  return "";
}

TEST_CASE("an archive whose weights do not fit its graph is refused") {
  const TemporaryModel model;
  using Records = std::map<std::string, std::string>;
  const auto refused = [&](const std::string& says, const std::function<void(Records&)>& edit) {
    Records records = recordsOfTiny();
    edit(records);
    model.write(records);
    CHECK_THAT(errorOfReading(model.path()),
               Contains("bad-model-file: " + model.path()) && Contains(says));
  };
  // Edits the description of the convolution's weights, of 4 x 1 x 3 x 3 floats.
  const auto refusedEntry = [&](const std::string& says, const std::function<void(Json&)>& edit) {
    refused(says, [&](Records& records) {
      Json file = Json::parse(records.at(kWeights));
      edit(file.at("config").at("conv.weight"));
      records[kWeights] = file.dump();
    });
  };
  model.write(recordsOfTiny());
  REQUIRE(errorOfReading(model.path()).empty());

  const std::string record = "data/weights/" + Json::parse(recordsOfTiny().at(kWeights))
                                                   .at("config")
                                                   .at("conv.weight")
                                                   .at("path_name")
                                                   .get<std::string>();
  refused(record + " is missing or damaged", [&](Records& records) { records.erase(record); });
  refused("the data of conv.weight is too short",
          [&](Records& records) { records.at(record).resize(records.at(record).size() - 4); });
  refused("models/model.json is missing",
          [&](Records& records) { records.erase("models/model.json"); });
  refused("it has no ", [&](Records& records) { records.erase(kWeights); });
  refused("one of its JSON files cannot be parsed",
          [&](Records& records) { records.at(kWeights).resize(20); });
  refusedEntry("the weight conv.weight is pickled",
               [](Json& entry) { entry["use_pickle"] = true; });
  refusedEntry("the data of conv.weight is too short", [](Json& entry) {
    entry["tensor_meta"]["strides"][0] = {{"as_int", std::int64_t{1} << 62}};
  });
  refusedEntry("conv.weight has a negative stride", [](Json& entry) {
    entry["tensor_meta"]["strides"][3] = {{"as_int", -1}};
  });
  refusedEntry("conv.weight has a negative stride or offset", [](Json& entry) {
    entry["tensor_meta"]["storage_offset"] = {{"as_int", -1}};
  });
  refusedEntry("the data of conv.weight is too short", [](Json& entry) {
    entry["tensor_meta"]["storage_offset"] = {{"as_int", 1}};
  });
  refusedEntry("conv.weight does not have the shape and type of the graph", [](Json& entry) {
    entry["tensor_meta"]["dtype"] = 8;  // fp64
  });
  refusedEntry("conv.weight does not have the shape and type of the graph", [](Json& entry) {
    entry["tensor_meta"]["sizes"][0] = {{"as_int", 5}};
  });
  refusedEntry("conv.weight does not have the shape and type of the graph",
               [](Json& entry) { entry["tensor_meta"]["strides"].erase(0); });
  refusedEntry("content is not what torch.export writes",
               [](Json& entry) { entry.erase("tensor_meta"); });
  refusedEntry("content is not what torch.export writes", [](Json& entry) {
    entry["tensor_meta"]["sizes"][0] = {{"as_expr", "s0"}};
  });
}

// Each of the records is 1,000 times smaller in the file.
TEST_CASE("records are refused by their size before they are unpacked") {
  constexpr std::size_t kBomb = (std::size_t{64} << 20) + 1;
  const std::string weights = "data/weights/" + Json::parse(recordsOfTiny().at(kWeights))
                                                    .at("config")
                                                    .at("conv.weight")
                                                    .at("path_name")
                                                    .get<std::string>();
  const TemporaryModel model;
  model.write(recordsOfTiny(), true);
  CHECK(errorOfReading(model.path()).empty());
  for (const std::string& record : {std::string("models/model.json"), kWeights, weights}) {
    auto records = recordsOfTiny();
    records.at(record).resize(kBomb, ' ');
    model.write(records, true);
    REQUIRE(std::filesystem::file_size(model.path()) < 200'000);
    CHECK_THAT(errorOfReading(model.path()),
               Contains("its record " + record) && Contains("more than 200 times the whole file"));
  }
}

TEST_CASE("a weight whose elements repeat is refused if it does not fit into memory") {
  auto records = recordsOfTiny();
  const auto enlarge = [](Json& meta) {
    meta.at("sizes").at(0) = {{"as_int", std::int64_t{1} << 32}};
  };
  for (const std::string name : {"models/model.json", "extra/evaluation.json"}) {
    Json file = Json::parse(records.at(name));
    enlarge(file.at("graph_module").at("graph").at("tensor_values").at("p_conv_weight"));
    records[name] = file.dump();
  }
  Json config = Json::parse(records.at(kWeights));
  Json& meta = config.at("config").at("conv.weight").at("tensor_meta");
  enlarge(meta);
  meta.at("strides").at(0) = {{"as_int", 0}};
  records[kWeights] = config.dump();
  const TemporaryModel model;
  model.write(records);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit little{rlim_t{64} << 30, before.rlim_max};  // the weight has 144 GiB
  REQUIRE(::setrlimit(RLIMIT_AS, &little) == 0);
  const std::string error = errorOfReading(model.path());
  CHECK(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK_THAT(error, Contains("conv.weight has") && Contains("more than the memory available"));
}

TEST_CASE("a file has a graph for evaluation, unless an older cleave_split.export wrote it") {
  const TemporaryModel model;
  const std::string evaluation = "extra/evaluation.json";
  CHECK(GraphFile(kTiny).graph().has_evaluation());
  auto records = recordsOfTiny();
  records.erase(evaluation);
  model.write(records);
  const GraphFile older(model.path());
  CHECK_FALSE(older.graph().has_evaluation());
  CHECK(older.readWeights().size() == GraphFile(kTiny).readWeights().size());

  records = recordsOfTiny();
  Json file = Json::parse(records.at(evaluation));
  file["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default";
  records[evaluation] = file.dump();
  model.write(records);
  CHECK_THAT(errorOfReading(model.path()),
             Contains("in evaluation mode: the operator aten.from_file.default"));
  records[evaluation].resize(20);
  model.write(records);
  CHECK_THAT(errorOfReading(model.path()),
             Contains("in evaluation mode") && Contains("cannot be parsed"));
}

TEST_CASE("a damaged archive is refused, or reads as before") {
  std::ifstream file(kTiny, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  REQUIRE(whole.size() > 10'000);
  const TemporaryModel model;
  int refused = 0, files = 0;
  const auto read = [&](const std::string& bytes) {
    ++files;
    model.write(bytes);
    const std::string error = errorOfReading(model.path());
    if (error.empty()) return;
    ++refused;
    CHECK_THAT(error, Contains("bad-model-file") || Contains("bad-graph"));
  };
  for (std::size_t at = 0; at < whole.size(); at += 29) {
    CAPTURE(at);
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    read(bytes);
  }
  CHECK(refused > files / 4);  // others are in padding and in unused records
  // Offsets, sizes, names and flags in the archive's directory.
  const std::size_t directory = whole.find("PK\x01\x02");
  REQUIRE(directory != std::string::npos);
  for (std::size_t at = directory; at + 4 <= whole.size(); at += 2) {
    for (const std::string& word :
         {std::string(4, '\0'), std::string(4, '\xff'), std::string("\xff\xff\xff\x7f")}) {
      CAPTURE(at, word);
      std::string bytes = whole;
      bytes.replace(at, word.size(), word);
      read(bytes);
    }
  }
  for (std::size_t size = 0; size < whole.size(); size += 401) {
    CAPTURE(size);
    const int before = refused;
    read(whole.substr(0, size));
    CHECK(refused == before + 1);
  }
}

}  // namespace
}  // namespace cleave::test
