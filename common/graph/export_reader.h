// Reads the JSON files of a .pt2 archive, which torch.export.save of PyTorch 2.9 or later writes
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
  // The model's inputs, in the order of the forward function's arguments.
  std::vector<std::string> inputNames;
  std::string torchVersion;
};

// `json`: the content of models/model.json. Throws UsageError "bad-model-file" if it has another
// format, uses features that Cleave does not support, or has an operator that is not allowed. The
// result is a valid graph.
ExportedGraph readExportedGraph(std::string_view json, const std::string& source);

// Makes `evaluation`, the same model exported in evaluation mode, the evaluation graph of
// `exported`. Throws UsageError "bad-graph" if their inputs, outputs or weights do not fit.
void addEvaluation(ExportedGraph& exported, ExportedGraph evaluation, const std::string& source);

// The location of a weight's bytes in the archive.
struct ExportedWeight {
  std::string record;  // "data/weights/weight_3"
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  // in elements
};

// Returns the weights by name. `json`: the content of model_weights_config.json or
// model_constants_config.json; `folder`: the folder of its records. Throws the errors of
// readExportedGraph().
std::map<std::string, ExportedWeight> readExportedWeights(std::string_view json,
                                                          const std::string& folder,
                                                          const std::string& source);

}  // namespace cleave
