// Fuzz target: bytes that are read as a graph, in every form in which a graph can arrive. Only
// UsageError is allowed. Packing and unpacking an accepted graph must succeed, and its parts must
// be valid.
#include <fstream>
#include <iterator>
#include <string>

#include "common/graph/cuts.h"
#include "common/graph/export_reader.h"
#include "common/graph/packed_graph.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

// The first byte of an input selects the form.
enum class Form : std::uint8_t { exportedGraph, exportedWeights, packed, message };
constexpr int kForms = 4;
constexpr int kMaxNodes = 200;  // cutting takes quadratic time

wire::Graph graphOf(Form form, std::string_view bytes) {
  switch (form) {
    case Form::exportedGraph:
      return readExportedGraph(bytes, "file").graph;
    case Form::exportedWeights:
      readExportedWeights(bytes, "data/weights", "file");
      return {};
    case Form::packed:
      return unpackGraph(bytes);
    case Form::message:
      break;
  }
  wire::Graph graph;
  if (!graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return {};
  checkGraph(graph, "message");
  return graph;
}

void cutEverywhere(const wire::Graph& graph) {
  const GraphCuts cuts(graph);
  for (std::size_t first = 0; first < cuts.cuts().size(); ++first) {
    const std::size_t second = cuts.cuts().size() - 1 - first / 2;
    GraphParts parts;
    try {
      parts = cuts.split({cuts.cuts()[first], cuts.cuts()[second]});
    } catch (const UsageError&) {
      continue;
    }
    for (const GraphPart* part : parts.all()) {
      checkGraph(part->graph, "a part");
    }
  }
}

Bytes seedOf(Form form, const std::string& content) {
  Bytes bytes = {static_cast<std::byte>(form)};
  for (const char c : content) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  wire::Graph graph;
  try {
    graph = graphOf(static_cast<Form>(data[0] % kForms), bytes);
  } catch (const UsageError&) {
    return 0;
  }
  if (graph.nodes_size() == 0 || graph.nodes_size() > kMaxNodes) return 0;
  if (unpackGraph(packGraph(graph)).SerializeAsString() != graph.SerializeAsString())
    find("a graph changes when packed and unpacked");
  cutEverywhere(graph);
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  std::ifstream file(CLEAVE_SOURCE_DIR "/tests/data/tiny_model.json", std::ios::binary);
  const std::string json(std::istreambuf_iterator<char>(file), {});
  const wire::Graph graph = readExportedGraph(json, "file").graph;
  wire::Graph evaluated = graph;
  setEvaluation(evaluated, graph);
  return {
      {"exported", seedOf(Form::exportedGraph, json)},
      {"weights", seedOf(Form::exportedWeights,
                         R"({"config": {"conv.weight": {"path_name": "weight_0", "is_param": true,
                  "use_pickle": false, "tensor_meta": {"dtype": 7, "sizes": [{"as_int": 4}],
                  "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}}}})")},
      {"packed", seedOf(Form::packed, packGraph(graph))},
      {"packed with an evaluation graph", seedOf(Form::packed, packGraph(evaluated))},
      {"message", seedOf(Form::message, graph.SerializeAsString())},
      {"message with an evaluation graph", seedOf(Form::message, evaluated.SerializeAsString())}};
}
