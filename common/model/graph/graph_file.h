// A model file written by cleave_split.export or torch.export.save: a .pt2 archive.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/graph/export_reader.h"
#include "common/model/model.h"

namespace cleave {

class GraphFile {
 public:
  // Reads and checks the graph, but not the weights. Throws UsageError "no-model-file" or
  // "bad-model-file".
  explicit GraphFile(const std::string& path);
  ~GraphFile();
  GraphFile(const GraphFile&) = delete;
  GraphFile& operator=(const GraphFile&) = delete;

  // With an evaluation graph if the file has one.
  const wire::Graph& graph() const { return exported_.graph; }
  // The names of the model's inputs, in their order.
  const std::vector<std::string>& inputNames() const { return exported_.inputNames; }
  // Additional names of the model's weights, such as the name of an output layer that shares the
  // embedding's weight. The key is the additional name, the value is the name that the graph uses.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }
  const std::string& torchVersion() const { return exported_.torchVersion; }
  const std::string& path() const { return path_; }

  // Reads the parameters, buffers and constants that the graph uses, each once. Throws UsageError
  // "bad-model-file" if one is missing, has another shape than in the graph, or is too short.
  std::vector<NamedTensor> readWeights() const;

 private:
  void findAliases();
  void checkFits(const std::string& name, const Shape& shape, std::size_t elementBytes) const;

  struct Archive;
  std::string path_;
  std::unique_ptr<Archive> archive_;
  ExportedGraph exported_;
  std::map<std::string, ExportedWeight> weights_;
  std::map<std::string, std::string> aliases_;
};

}  // namespace cleave
