// Reads what torch.export.save writes: the JSON files of a .pt2 archive, of PyTorch 2.9 and later
// (schema version 8). No Torch, no pickle; nothing in the files is executed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/graph/graph.h"

namespace cleave {

struct ExportedGraph {
  wire::Graph graph;
  // Of the values that are inputs of the model, in the order of its forward function.
  std::vector<std::string> inputNames;
  std::string torchVersion;
};

// `json`: the content of models/model.json. Throws UsageError "bad-model-file" if it is not such a
// file, uses what Cleave does not support, or has an operator that is not allowed. The result is a
// valid graph.
ExportedGraph readExportedGraph(std::string_view json, const std::string& source);

// Where the bytes of a weight are in the archive.
struct ExportedWeight {
  std::string record;  // "data/weights/weight_3"
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  // elements
};

// `json`: the content of model_weights_config.json or model_constants_config.json; `folder`: the
// folder of its records. By name. Throws as readExportedGraph().
std::map<std::string, ExportedWeight> readExportedWeights(std::string_view json,
                                                          const std::string& folder,
                                                          const std::string& source);

}  // namespace cleave
