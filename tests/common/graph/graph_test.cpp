#include "common/graph/graph.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "common/core/names.h"
#include "common/graph/adapters.h"
#include "common/graph/costs.h"
#include "common/graph/cuts.h"
#include "common/graph/export_reader.h"
#include "common/graph/operators.h"
#include "common/graph/packed_graph.h"
#include "common/graph/suggested_cuts.h"
#include "tests/support/models/graph_builder.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

// A file written by torch.export; see python/tests/make_fixtures.py.
std::string tinyJson() {
  std::ifstream file(CLEAVE_SOURCE_DIR "/tests/data/tiny_model.json", std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

wire::Graph tiny() { return readExportedGraph(tinyJson(), "tiny.pt2").graph; }

std::string errorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.code() + ": " + error.what() + "; " + error.hint();
  }
  return "";
}

// The error of reading the file after `edit`.
std::string errorAfter(const std::function<void(Json& file)>& edit) {
  Json file = Json::parse(tinyJson());
  edit(file);
  return errorOf([&] { readExportedGraph(file.dump(), "tiny.pt2"); });
}

// The error of checking the graph after `edit`.
std::string errorAfterChange(const std::function<void(wire::Graph& graph)>& edit) {
  wire::Graph graph = tiny();
  edit(graph);
  return errorOf([&] { checkGraph(graph, "a graph"); });
}

wire::Node& nodeOf(wire::Graph& graph, const std::string& op) {
  for (wire::Node& node : *graph.mutable_nodes()) {
    if (node.op() == op) return node;
  }
  throw std::runtime_error("no node " + op);
}

TEST_CASE("reading an exported model gives its operators, values and weights") {
  const ExportedGraph exported = readExportedGraph(tinyJson(), "tiny.pt2");
  const wire::Graph& graph = exported.graph;
  CHECK(exported.inputNames == std::vector<std::string>{"x"});
  CHECK_THAT(exported.torchVersion, Contains("2."));
  REQUIRE(graph.inputs_size() == 1);
  CHECK(shapeText(graph.values(static_cast<int>(graph.inputs(0)))) == "[samples, 1, 8, 8]");
  CHECK(shapeText(graph.values(static_cast<int>(graph.outputs(0)))) == "[samples, 10]");
  std::vector<std::string> ops;
  for (const wire::Node& node : graph.nodes()) ops.push_back(node.op());
  // The node that counts batches is left out.
  CHECK(ops == std::vector<std::string>{"aten.conv2d.default", "aten.batch_norm.default",
                                        "aten.relu.default", "aten.conv2d.default",
                                        "aten.relu_.default", "aten.add.Tensor",
                                        "aten.max_pool2d.default", "aten.flatten.using_ints",
                                        "aten.dropout.default", "aten.linear.default"});
  const GraphCosts costs = costsOf(graph, 0, static_cast<std::size_t>(graph.nodes_size()));
  CHECK(costs.parameters == 40 + 8 + 148 + 170);
  CHECK(costs.flopsPerSample == 2 * (64 * 4 * 9 + 64 * 4 * 36 + 160));
}

TEST_CASE("possible cuts are the ends of modules, listed with the tensors that cross") {
  const wire::Graph graph = tiny();
  const GraphCuts cuts(graph);
  std::vector<std::string> names;
  for (const GraphCut& cut : cuts.cuts()) names.push_back(cut.names.front());
  CHECK(names == std::vector<std::string>{"conv", "norm", "block.0", "block", "pool", "dropout"});
  CHECK(cuts.find("conv").tensors.size() == 1);
  CHECK(cuts.bytesPerSample(cuts.find("conv")) == 4 * 4 * 64);
  CHECK(cuts.find("block.1").position == cuts.find("block").position);
  // A cut within the residual block is also crossed by the block's input.
  CHECK(cuts.find("block.0").tensors.size() == 2);
  CHECK_THAT(errorOf([&] { cuts.find("pol"); }), Contains("bad-cuts") && Contains("mean pool"));
  CHECK_THAT(errorOf([&] {
               cuts.split({cuts.find("pool"), cuts.find("conv")});
             }),
             Contains("not after"));
}

TEST_CASE("the suggested cuts leave little to the client, and few bytes cross them") {
  const wire::Graph graph = tiny();
  const GraphCuts cuts(graph);
  const auto suggested = suggestCuts(graph, cuts);
  REQUIRE(suggested);
  // Every head takes more than a tenth; `conv` and `norm` take the least, and as many bytes cross.
  CHECK(suggested->first.names.front() == "norm");
  // `pool` and `dropout` are crossed by 16 floats, and the tail is shorter after `dropout`.
  CHECK(suggested->last.names.front() == "dropout");
  CHECK(suggested->firstBytes == 4 * 4 * 64);
  CHECK(suggested->lastBytes == 4 * 16);
  CHECK(suggested->headShare == Approx(64 * 4 * 9 / (64 * 4 * 45 + 160.0)));
  CHECK(suggested->tailShare == Approx(160 / (64 * 4 * 45 + 160.0)));
  CHECK_THAT(suggested->reason(), Contains("the first 19.7 % and the last 1.4 %") &&
                                      Contains("no first cut leaves less to the client"));
}

// Ids, an embedding, and linear layers of these widths.
wire::Graph textModel(const std::vector<std::int64_t>& widths) {
  GraphBuilder builder;
  const std::uint32_t ids = builder.input("input_ids", "i64", {-1, 8});
  const std::uint32_t table = builder.weight(wire::Value::PARAMETER, "emb.weight", {100, 4});
  std::int64_t width = 4;
  std::uint32_t result =
      builder.node("aten.embedding.default", "emb", {table, ids}, "f32", {-1, 8, width});
  for (std::size_t n = 0; n < widths.size(); ++n) {
    const std::string name = "layer" + std::to_string(n);
    const std::uint32_t weight =
        builder.weight(wire::Value::PARAMETER, name + ".weight", {widths[n], width});
    width = widths[n];
    result = builder.node("aten.linear.default", name, {result, weight}, "f32", {-1, 8, width});
  }
  return builder.finish(result);
}

TEST_CASE("no cut directly behind an embedding is suggested, and the reason names each side") {
  const auto suggest = [](const std::vector<std::int64_t>& widths) {
    const wire::Graph graph = textModel(widths);
    return suggestCuts(graph, GraphCuts(graph));
  };
  const auto even = suggest({4, 400, 4, 2});
  REQUIRE(even);
  CHECK(even->first.names.front() == "layer0");
  CHECK(even->last.names.front() == "layer2");
  CHECK_THAT(even->reason(), Contains("of the cuts with at most 10 % on either side"));
  const auto longHead = suggest({8, 8, 8, 1});
  REQUIRE(longHead);
  CHECK(longHead->headShare > 0.1);
  CHECK(longHead->tailShare < 0.1);
  CHECK_THAT(longHead->reason(), Contains("no first cut leaves less to the client; of the cuts "
                                          "with at most 10 % after it, the fewest bytes cross the "
                                          "last"));
  const auto longTail = suggest({1, 8, 8, 32});
  REQUIRE(longTail);
  CHECK_THAT(longTail->reason(), Contains("no last cut leaves less to the client; of the cuts with "
                                          "at most 10 % before it"));
  CHECK_FALSE(suggest({8}));
}

TEST_CASE("recurrent layers cost their weights in each time step") {
  GraphBuilder builder;
  const std::uint32_t x = builder.input("x", "f32", {-1, 8, 4});
  const std::uint32_t weight = builder.weight(wire::Value::PARAMETER, "w", {12, 4});
  const std::uint32_t hidden = builder.weight(wire::Value::PARAMETER, "v", {12, 3});
  builder.node("aten.gru.input", "gru", {x}, "f32", {-1, 8, 3});
  wire::Node& node = *builder.graph.mutable_nodes(0);
  for (const std::uint32_t each : {weight, hidden})
    node.add_arguments()->mutable_tensors()->add_items(each + 1);
  node.add_outputs(builder.value("f32", {1, -1, 3}));
  CHECK(costsOf(builder.graph, 0, 1).flopsPerSample == 2 * 8 * (12 * 4 + 12 * 3));
}

TEST_CASE("no cuts are suggested for a model that cannot be divided into three parts") {
  wire::Graph graph = tiny();
  for (wire::Node& node : *graph.mutable_nodes()) {
    if (node.op() != "aten.conv2d.default") node.clear_module();
  }
  const GraphCuts cuts(graph);
  CHECK_FALSE(suggestCuts(graph, cuts));
}

TEST_CASE("the parts of a graph are valid, and have all its weights once") {
  const wire::Graph graph = tiny();
  const GraphCuts cuts(graph);
  for (const auto& [first, second] :
       {std::pair{"conv", "pool"}, std::pair{"norm", "block.0"}, std::pair{"block.0", "dropout"}}) {
    INFO(first << " " << second);
    const GraphParts parts = cuts.split({cuts.find(first), cuts.find(second)});
    std::multiset<std::string> names;
    int nodes = 0;
    for (const GraphPart* part : parts.all()) {
      checkGraph(part->graph, "a part");
      nodes += part->graph.nodes_size();
      for (const wire::Value& value : part->graph.values()) {
        if (isWeight(value)) names.insert(value.name());
      }
    }
    CHECK(nodes == graph.nodes_size());
    CHECK(names.size() == 11);
    CHECK(std::set<std::string>(names.begin(), names.end()).size() == 11);
    CHECK(parts.head.batchInputs == std::vector<std::size_t>{0});
    CHECK(parts.bodies.front().graph.inputs_size() == parts.head.graph.outputs_size());
    CHECK(parts.tail.graph.inputs_size() == parts.bodies.front().graph.outputs_size());
  }
}

TEST_CASE("a parameter cannot be both in the body and on the client") {
  wire::Graph graph = tiny();
  // The second convolution gets the first one's bias.
  wire::Node& second = *graph.mutable_nodes(3);
  REQUIRE(second.op() == "aten.conv2d.default");
  const std::uint32_t bias = findArgument(graph.nodes(0), "bias")->tensor();
  for (wire::Argument& argument : *second.mutable_arguments()) {
    if (argument.name() == "bias") argument.set_tensor(bias);
  }
  const GraphCuts cuts(graph);
  const std::string error = errorOf([&] { cuts.split({cuts.find("norm"), cuts.find("pool")}); });
  CHECK_THAT(error, Contains("bad-cuts") && Contains("conv.bias is used on both sides of a cut"));
  CHECK(errorOf([&] { cuts.split({cuts.find("block"), cuts.find("pool")}); }).empty());
}

TEST_CASE("adapters are added to the linear layers that are targets") {
  wire::Graph graph = tiny();
  REQUIRE(linearModules(graph).size() == 1);
  CHECK(linearModules(graph)[0].name == "classifier");
  CHECK(!linearModules(graph)[0].inputsFirst);
  const int nodes = graph.nodes_size(), values = graph.values_size();
  LoraSpec lora;
  lora.rank = 3;
  lora.dropout = 0.1;
  lora.targets = {"conv", "fc"};
  CHECK(addAdapters(graph, lora).empty());
  CHECK(graph.nodes_size() == nodes);
  lora.targets = {"class*"};
  CHECK(addAdapters(graph, lora) == std::vector<std::string>{"classifier"});
  checkGraph(graph, "adapted");
  CHECK(graph.nodes_size() == nodes + 5);
  CHECK(graph.values_size() == values + 7);  // two parameters, five results
  const wire::Node& sum = graph.nodes(graph.nodes_size() - 1);
  CHECK(sum.op() == "aten.add.Tensor");
  CHECK(graph.outputs(0) == sum.outputs(0));
  std::map<std::string, std::string> shapes;
  for (const wire::Value& value : graph.values()) {
    if (isAdapter(value.name())) shapes[value.name()] = shapeText(value);
  }
  CHECK(shapes == std::map<std::string, std::string>{{"classifier.lora_A.weight", "[3, 16]"},
                                                     {"classifier.lora_B.weight", "[10, 3]"}});
}

TEST_CASE("weights that are read by operators other than linear layers are found") {
  wire::Graph graph = tiny();
  CHECK(modulesReadOtherwise(graph).contains("conv"));
  CHECK(!modulesReadOtherwise(graph).contains("classifier"));
  const auto& linear =
      *std::find_if(graph.nodes().begin(), graph.nodes().end(),
                    [](const auto& each) { return each.op() == "aten.linear.default"; });
  const std::uint32_t weight = findArgument(linear, "weight")->tensor();
  graph.mutable_nodes(0)->mutable_arguments(0)->set_tensor(weight);
  CHECK(modulesReadOtherwise(graph).contains("classifier"));
}

TEST_CASE("patterns match whole names") {
  CHECK(matchesPattern("", ""));
  CHECK(matchesPattern("", "**"));
  CHECK(matchesPattern("conv1.weight", "conv?.*"));
  CHECK(matchesPattern("a.b.a.b.c", "*a.b.c"));
  CHECK(matchesPattern("abc", "a*b*c*"));
  CHECK_FALSE(matchesPattern("conv1.weight", "conv1"));
  CHECK_FALSE(matchesPattern("conv1", "conv1?"));
  CHECK_FALSE(matchesPattern("abc", "a*d"));
  CHECK_FALSE(matchesPattern("", "?"));
}

TEST_CASE("a target is a name, the end of a name, or a pattern") {
  LoraSpec lora;
  lora.targets = {"query", "encoder.*.value"};
  CHECK(isTarget(lora, "query"));
  CHECK(isTarget(lora, "encoder.0.query"));
  CHECK(isTarget(lora, "encoder.0.value"));
  CHECK(isTarget(lora, "bert.encoder.0.value"));
  CHECK_FALSE(isTarget(lora, "encoder.0.bigquery"));
  CHECK_FALSE(isTarget(lora, "encoder.0.query.dense"));
  CHECK_FALSE(isTarget(lora, "decoder.0.value"));
}

// A graph whose tensor `ones` has two names: one node writes to it by one name, another reads it by
// the other.
wire::Graph withAlias(const std::string& writes, bool writesInput) {
  GraphBuilder built;
  const std::uint32_t input = built.input("x", "f32", {-1, 4});
  const std::uint32_t ids = built.input("ids", "i64", {-1, 4});
  const std::uint32_t ones = built.node("aten.ones_like.default", "first", {ids});
  const std::uint32_t alias = built.node("aten.view.default", "first", {ones});
  built.node(writes, "first", writesInput ? std::vector{ones, input} : std::vector{ones});
  const std::uint32_t first = built.node("aten.relu.default", "first", {input});
  const std::uint32_t second = built.node("aten.add.Tensor", "second", {first, alias});
  return built.finish(built.node("aten.relu.default", "third", {second}));
}

// A graph with an embedding, and a layer that adds a mask, which it computes from the ids or from
// an input. `derives`: the operator between ids and embedding, or "positions" or "product" of ids;
// empty: none.
wire::Graph withMask(bool maskIsInput, const std::string& derives = "") {
  GraphBuilder built;
  const std::uint32_t ids = built.input("input_ids", "i64", {-1, 4});
  const std::uint32_t given = maskIsInput ? built.input("mask", "i64", {-1, 4}) : ids;
  const std::uint32_t table = built.weight(wire::Value::PARAMETER, "embedding.weight", {100, 4});
  std::uint32_t index = ids;
  if (derives == "positions") {
    const std::uint32_t sums = built.node("aten.cumsum.default", "embedding", {ids}, "i64");
    const std::uint32_t converted = built.node("aten.to.dtype", "embedding", {sums}, "i64");
    index = built.node("aten.mul.Tensor", "embedding", {converted, ids}, "i64");
  } else if (derives == "product") {
    const std::uint32_t known = built.node("aten.ge.Scalar", "embedding", {ids}, "bool");
    index = built.node("aten.mul.Tensor", "embedding", {ids, known}, "i64");
  } else if (!derives.empty()) {
    index = built.node(derives, "embedding", {ids}, derives == "aten.ne.Scalar" ? "bool" : "i64");
  }
  std::uint32_t x = built.node("aten.embedding.default", "embedding", {table, index});
  const std::uint32_t mask = built.node("aten.ne.Scalar", "layer", {given}, "bool");
  x = built.node("aten.add.Tensor", "layer", {x, mask});
  x = built.node("aten.relu.default", "middle", {x});
  return built.finish(built.node("aten.relu.default", "last", {x}));
}

std::vector<std::string> operatorsOf(const wire::Graph& graph) {
  std::vector<std::string> ops;
  for (const wire::Node& node : graph.nodes()) ops.push_back(node.op());
  return ops;
}

TEST_CASE("if a tensor is recomputed, writes to it are repeated, whichever name they use") {
  const wire::Graph graph = withAlias("aten.zero_.default", false);
  const GraphCuts cuts(graph);
  const GraphParts parts = cuts.split({cuts.find("first"), cuts.find("second")});
  CHECK(operatorsOf(parts.bodies.front().graph) ==
        std::vector<std::string>{"aten.ones_like.default", "aten.view.default",
                                 "aten.zero_.default", "aten.add.Tensor"});
}

TEST_CASE("a tensor to which floats are written crosses under each of its names") {
  const wire::Graph graph = withAlias("aten.copy_.default", true);
  const GraphCuts cuts(graph);
  CHECK(cuts.find("first").tensors.size() == 2);
  const GraphParts parts = cuts.split({cuts.find("first"), cuts.find("second")});
  CHECK(operatorsOf(parts.bodies.front().graph) == std::vector<std::string>{"aten.add.Tensor"});
}

TEST_CASE("a body never gets the ids that the model looks up in a table") {
  for (const char* derives :
       {"", "aten.clone.default", "aten.view.default", "aten.add.Scalar", "product"}) {
    const wire::Graph graph = withMask(false, derives);
    const GraphCuts cuts(graph);
    const std::string error = errorOf([&] {
      cuts.split({cuts.find("embedding"), cuts.find("layer")});
    });
    INFO(derives);
    CHECK_THAT(error, Contains("bad-cuts") && Contains("aten.ne.Scalar") &&
                          Contains("in module 'layer'") && Contains("reads input_ids") &&
                          Contains("aten.embedding.default") &&
                          Contains("as an input of the model"));
    // A body that only passes them on to a later one would get them too.
    CHECK_THAT(errorOf([&] {
                 cuts.split({cuts.find("embedding"), cuts.find("layer"), cuts.find("middle")});
               }),
               Contains("bad-cuts"));
    // On the client, the mask may be computed from the ids.
    const GraphParts parts = cuts.split({cuts.find("layer"), cuts.find("middle")});
    CHECK(parts.bodies.front().graph.inputs_size() == 1);
  }
}

TEST_CASE("every table in which ids are looked up counts as an embedding") {
  for (const std::string op : {"aten.index.Tensor", "aten.index_select.default",
                               "aten.gather.default", "aten.scatter.value"}) {
    for (const bool isComputed : {false, true}) {
      GraphBuilder built;
      const std::uint32_t ids = built.input("input_ids", "i64", {-1, 4});
      std::uint32_t table = built.value("f32", {100, 4});
      wire::Value& weight = *built.graph.mutable_values(static_cast<int>(table));
      weight.set_kind(wire::Value::PARAMETER);
      weight.set_name("table");
      if (isComputed) {
        table = built.node("aten.abs.default", "table", {table});
        built.graph.mutable_values(static_cast<int>(table))->mutable_shape()->Set(0, 100);
      }
      std::uint32_t x = built.node(op, "embedding", {table, ids});
      x = built.node("aten.add.Tensor", "embedding", {x, built.input("x", "f32", {-1, 4})});
      const std::uint32_t mask = built.node("aten.ne.Scalar", "layer", {ids}, "bool");
      x = built.node("aten.add.Tensor", "layer", {x, mask});
      const wire::Graph graph = built.finish(built.node("aten.relu.default", "last", {x}));
      const GraphCuts cuts(graph);
      INFO(op << (isComputed ? ", computed table" : ""));
      CHECK_THAT(errorOf([&] {
                   cuts.split({cuts.find("embedding"), cuts.find("layer")});
                 }),
                 Contains("bad-cuts"));
    }
  }
}

TEST_CASE("a mask that is an input goes to the body, without the ids") {
  const wire::Graph graph = withMask(true);
  const GraphCuts cuts(graph);
  const GraphParts parts = cuts.split({cuts.find("embedding"), cuts.find("layer")});
  const wire::Graph& body = parts.bodies.front().graph;
  REQUIRE(body.inputs_size() == 2);
  CHECK(body.values(static_cast<int>(body.inputs(1))).name() == "mask");
  for (const wire::Value& value : body.values()) CHECK(value.name() != "input_ids");
}

TEST_CASE("a mask from which positions are computed may go to the body") {
  // Such indices reveal little of the input from which they are computed.
  for (const char* derives : {"aten.cumsum.default", "positions", "aten.ne.Scalar"}) {
    const wire::Graph graph = withMask(false, derives);
    const GraphCuts cuts(graph);
    INFO(derives);
    const GraphParts parts = cuts.split({cuts.find("embedding"), cuts.find("layer")});
    CHECK(parts.bodies.front().graph.inputs_size() == 2);
  }
}

TEST_CASE("an impossible cut is refused with what crosses and the nearest cuts of one tensor") {
  wire::Graph graph = tiny();
  const std::uint32_t inside = graph.nodes(3).outputs(0);
  REQUIRE(graph.nodes(3).module() == "block.0");
  graph.mutable_values(static_cast<int>(inside))->set_dtype("f16");
  const GraphCuts cuts(graph);
  const std::string error = errorOf([&] { cuts.split({cuts.find("conv"), cuts.find("block.0")}); });
  CHECK_THAT(error,
             Contains("bad-cuts: the model cannot be cut after block.0") &&
                 Contains("a tensor of f16 crosses") &&
                 Contains("what crosses: relu [samples, 4, 8, 8], conv2d_1 [samples, 4, 8, 8]") &&
                 Contains("cut after norm or pool, where one tensor crosses"));
}

TEST_CASE("a body whose graph is too large for the first message is refused with a hint") {
  GraphBuilder built;
  std::uint32_t x = built.input("x", "f32", {-1, 4});
  // Names that do not compress.
  std::uint64_t state = 1;
  for (int n = 0; n < 400; ++n) {
    std::string module;
    for (int c = 0; c < 250; ++c) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      module += static_cast<char>('a' + (state >> 33) % 26);
    }
    x = built.node("aten.relu.default", module, {x});
  }
  const wire::Graph graph = built.finish(x);
  CHECK_THAT(errorOf([&] { packGraph(graph); }), Contains("graph-too-large") &&
                                                     Contains("400 operators") &&
                                                     Contains("move the cuts closer"));
}

TEST_CASE("packing preserves a graph, and unpacking refuses anything else") {
  const wire::Graph graph = tiny();
  const std::string packed = packGraph(graph);
  CHECK(packed.size() < 2048);
  CHECK(unpackGraph(packed).SerializeAsString() == graph.SerializeAsString());
  for (std::size_t size = 0; size < packed.size(); ++size) {
    CHECK_THAT(errorOf([&] { unpackGraph(packed.substr(0, size)); }), Contains("bad-graph"));
  }
  // A few bytes that declare gigabytes.
  std::string bomb = packed;
  bomb[4] = static_cast<char>(0xE0);
  CHECK_THAT(errorOf([&] { unpackGraph(bomb); }), Contains("bad-graph"));
}

TEST_CASE("files that are not exported models are refused") {
  const std::string whole = tinyJson();
  for (std::size_t size = 0; size < whole.size(); size += 37) {
    CHECK_THAT(errorOf([&] { readExportedGraph(whole.substr(0, size), "x"); }),
               Contains("bad-model-file"));
  }
  for (const char* text : {"[]", "{}", "null", "7", "{\"schema_version\": {\"major\": 8}}"}) {
    CHECK_THAT(errorOf([&] { readExportedGraph(text, "x"); }), Contains("bad-model-file"));
  }
  CHECK_THAT(errorAfter([](Json& file) { file["schema_version"]["major"] = 7; }),
             Contains("schema version is 7") && Contains("PyTorch 2.9"));
}

TEST_CASE("an exported model that cannot be trained is refused, and the error locates the fault") {
  const auto nodes = [](Json& file) -> Json& { return file["graph_module"]["graph"]["nodes"]; };
  CHECK_THAT(
      errorAfter(
          [&](Json& file) { nodes(file)[0]["target"] = "torch.ops.aten.from_file.default"; }),
      Contains("aten.from_file.default") && Contains("module 'conv'") && Contains("not allowed"));
  CHECK_THAT(errorAfter([&](Json& file) { nodes(file)[0]["target"] = "my_package.my_function"; }),
             Contains("my_package.my_function"));
  CHECK_THAT(
      errorAfter([&](Json& file) { nodes(file)[0]["target"] = "torch.ops.higher_order.cond"; }),
      Contains("cond"));
  CHECK_THAT(errorAfter([&](Json& file) {
               Json& sizes = file["graph_module"]["graph"]["tensor_values"]["x"]["sizes"];
               sizes[0] = {{"as_int", 2}};
             }),
             Contains("fixed size") && Contains("cleave_split.export"));
  CHECK_THAT(errorAfter([&](Json& file) {
               Json& specs = file["graph_module"]["signature"]["output_specs"];
               specs.push_back(specs[0]);
               Json& outputs = file["graph_module"]["graph"]["outputs"];
               outputs.push_back(outputs[0]);
             }),
             Contains("returns 2 values") && Contains("output="));
}

TEST_CASE("what a graph cannot express is refused with what to change in the model") {
  const auto value = [](Json& file) -> Json& {
    return file["graph_module"]["graph"]["tensor_values"]["conv2d"];
  };
  CHECK_THAT(errorAfter([&](Json& file) { value(file)["dtype"] = 10; }),
             Contains("aten.conv2d.default (conv2d, in module 'conv') makes complex numbers"));
  CHECK_THAT(errorAfter([&](Json& file) {
               value(file)["sizes"][0] = {{"as_expr", {{"expr_str", "u0"}, {"hint", nullptr}}}};
             }),
             Contains("in module 'conv') makes a tensor whose size depends on values"));
  CHECK_THAT(errorAfter([&](Json& file) {
               Json& node = file["graph_module"]["graph"]["nodes"][0];
               node["outputs"] = {{{"as_sym_float", {{"as_name", "item"}}}}};
             }),
             Contains("in module 'conv') reads the value of a tensor"));
}

TEST_CASE("hostile graphs are refused") {
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) { graph.set_outputs(0, 1'000'000); }),
             Contains("not defined"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) { graph.clear_outputs(); }),
             Contains("0 outputs"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) { graph.clear_inputs(); }),
             Contains("0 inputs"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) { graph.add_outputs(graph.outputs(0)); }),
             Contains("twice"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               for (wire::Value& value : *graph.mutable_values()) {
                 if (!isWeight(value)) continue;
                 value.clear_shape();
                 value.add_shape(std::int64_t{1} << 39);
                 value.add_shape(std::int64_t{1} << 24);  // the product overflows 64 bits
               }
             }),
             Contains("too large"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               wire::Argument& argument = *nodeOf(graph, "aten.relu.default").add_arguments();
               argument.set_name("memory_format");
               argument.set_memory_format("sparse");
             }),
             Contains("memory format"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               nodeOf(graph, "aten.linear.default").mutable_arguments(0)->set_tensor(4'000'000'000);
             }),
             Contains("not defined"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               graph.mutable_nodes()->SwapElements(0, 9);  // uses values before they are computed
             }),
             Contains("not defined"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               nodeOf(graph, "aten.linear.default").set_outputs(0, graph.inputs(0));
             }),
             Contains("redefines a value"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               const std::uint32_t weight =
                   nodeOf(graph, "aten.linear.default").arguments(1).tensor();
               nodeOf(graph, "aten.relu_.default").mutable_arguments(0)->set_tensor(weight);
             }),
             Contains("changes classifier.weight"));
  CHECK_THAT(
      errorAfterChange([](wire::Graph& graph) {
        nodeOf(graph, "aten.flatten.using_ints").mutable_arguments(1)->set_size(graph.inputs(0));
      }),
      Contains("a tensor as a size"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) { graph.mutable_values(0)->set_dtype("f8"); }),
             Contains("unknown dtype"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               graph.mutable_values(0)->mutable_shape()->Add(std::int64_t{1} << 50);
             }),
             Contains("dimension"));
  CHECK_THAT(errorAfterChange([](wire::Graph& graph) {
               graph.mutable_values(1)->set_name(graph.values(0).name());
             }),
             Contains("twice"));
}

TEST_CASE("the documentation and the Python package list the allowed operators, and no others") {
  const auto listedIn = [](const char* path, const std::string& begin, const std::string& end) {
    std::ifstream file(path);
    std::string text(std::istreambuf_iterator<char>(file), {});
    text = text.substr(text.find(begin) + begin.size());
    std::istringstream words(text.substr(0, text.find(end)));
    std::vector<std::string> names;
    for (std::string word; words >> word;) {
      std::erase(word, '`');
      names.push_back(word);
    }
    return names;
  };
  std::vector<std::string> names;
  for (const OperatorRow& row : operatorTable()) names.emplace_back(row.name);
  INFO("run tests/docs_test.py --write");
  CHECK(listedIn(CLEAVE_SOURCE_DIR "/docs/models.md", "--write. -->", "<!--") == names);
  CHECK(listedIn(CLEAVE_SOURCE_DIR "/python/cleave_split/operators.py", "(\"\"\"", "\"\"\"") ==
        names);
}

TEST_CASE("an operator that is not allowed is named with its line, if the file has it") {
  const auto foreign = [](const std::string& trace) {
    return errorAfter([&](Json& file) {
      Json& node = file["graph_module"]["graph"]["nodes"][0];
      node["target"] = "torch.ops.aten.vander.default";
      if (!trace.empty()) node["metadata"]["stack_trace"] = trace;
    });
  };
  const std::string refused = "aten.vander.default";
  CHECK_THAT(foreign(""), Contains(refused) && Contains("is not allowed;"));
  CHECK_THAT(foreign("  File \"/home/a/net.py\", line 7, in forward\n    return torch.vander(x)\n"),
             Contains(refused) && Contains("not allowed, at net.py:7: return torch.vander(x);"));
  CHECK_THAT(foreign("no trace"), Contains("is not allowed;"));
  CHECK_THAT(foreign("File \"net.py\", line 7"), Contains("at net.py:7;"));
}

TEST_CASE("results of an operator on a list share the memory of the list's tensors") {
  wire::Graph graph = tiny();
  const std::uint32_t input = graph.inputs(0);
  const std::uint32_t weight = nodeOf(graph, "aten.linear.default").arguments(1).tensor();
  const auto first = static_cast<std::uint32_t>(graph.values_size());
  wire::Node& node = *graph.add_nodes();
  node.set_op("aten.broadcast_tensors.default");
  node.set_name("both");
  node.set_is_list(true);
  wire::Argument& list = *node.add_arguments();
  list.set_name("tensors");
  for (const std::uint32_t id : {input, weight}) {
    list.mutable_tensors()->add_items(id + 1);
    wire::Value& result = *graph.add_values();
    result.set_dtype("f32");
    node.add_outputs(first + (id == weight ? 1 : 0));
  }
  const GraphIds owners = memoryOwners(graph);
  CHECK(owners[first] == input);
  CHECK(owners[first + 1] == weight);
}

TEST_CASE("no allowed operator reads files, raw memory or uninitialised values of others") {
  for (const char* op :
       {"aten.from_file.default", "aten.as_strided.default", "aten.set_.source_Storage",
        "aten.resize_.default", "aten.reflection_pad3d.default", "aten.nonzero.default",
        "prims.iota.default", "aten.conv2d", "conv2d.default", ""}) {
    CHECK(findOperator(op) == nullptr);
  }
  for (const OperatorRow& row : operatorTable()) {
    INFO(row.name);
    const std::string base(row.name.substr(0, row.name.find('.')));
    const bool isInPlace =
        base.ends_with("__") ? base.starts_with("__i") : base.ends_with("_");  // x &= y: __iand__
    CHECK(isInPlace == (row.memory == ResultMemory::inPlace));
  }
}

}  // namespace
}  // namespace cleave::test
