#include "common/graph/packed_graph.h"

#include <spdlog/fmt/fmt.h>
#include <zstd.h>

namespace cleave {
namespace {

// A message of empty values takes up to 60 times its size in memory.
constexpr std::size_t kMaxGraphBytes = 2 << 20;
constexpr int kLevel = 19;  // the highest level that needs no additional memory

}  // namespace

std::string packGraph(const wire::Graph& graph) {
  const std::string bytes = graph.SerializeAsString();
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size =
      ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), kLevel);
  if (bytes.size() > kMaxGraphBytes || ZSTD_isError(size) != 0 || size > kMaxPackedGraphBytes) {
    throw UsageError("graph-too-large",
                     fmt::format("the body's graph of {} operators takes {} bytes, more than {}",
                                 graph.nodes_size(), size, kMaxPackedGraphBytes),
                     "move the cuts closer to each other: model.cuts")
        .about("model.cuts");
  }
  packed.resize(size);
  return packed;
}

wire::Graph unpackGraph(std::string_view packed) {
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (packed.size() > kMaxPackedGraphBytes ||
      size > kMaxGraphBytes) {  // `size` is also too large for an invalid frame
    throw UsageError("bad-graph", "the graph is not compressed as expected, or too large");
  }
  std::string bytes(static_cast<std::size_t>(size), '\0');
  const std::size_t written =
      ZSTD_decompress(bytes.data(), bytes.size(), packed.data(), packed.size());
  wire::Graph graph;
  if (written != bytes.size() || !graph.ParseFromString(bytes)) {
    throw UsageError("bad-graph", "the graph is damaged");
  }
  checkGraph(graph, "the body's graph");
  return graph;
}

}  // namespace cleave
