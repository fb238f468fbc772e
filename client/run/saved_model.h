// The description of a model in the metadata of model.safetensors. With this description, the
// commands eval, predict and export need only the file, not the run's folder.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/run/prepare.h"

namespace cleave {

struct ModelDescription {
  // The value of run.name. The run's id is not stored, so that runs with the same configuration
  // write identical files.
  std::string run;
  std::uint64_t steps = 0;
  // YAML: the sections run, model, data, train, eval and precision of the run's configuration.
  std::string config;
  nlohmann::json learned;            // Dataset::learned() of the training set
  DataDigest trainDigest;            // of the training set
  std::vector<std::string> classes;  // names of the classes; may be empty
  // Scale of the adapters that the file contains besides the weights (common/graph/adapters.h). 0:
  // there are no adapters.
  double loraScale = 0;
  std::vector<std::string> inputsFirst;  // adapted layers whose weight is [inputs, outputs]

  // The description as keys and text values of the file's metadata.
  std::map<std::string, std::string> toMetadata() const;
};
ModelDescription describeModel(const PreparedRun& run);

struct SavedModel {
  std::string path;
  ModelDescription description;
};
// `source`: the folder of a run, or a file. In a folder, the file is model.best.safetensors if
// `best` is set, and otherwise model.safetensors. Throws UsageError "no-model" if it does not
// exist.
std::string modelFileOf(const std::string& source, bool best);
// Throws UsageError "no-model" if there is no such file or it is not a safetensors file, and
// "no-description" if it has no description.
SavedModel openSavedModel(const std::string& source, bool best);
// The number of steps after which a run has written this file; nothing if there is no such file, or
// if it says no number.
std::optional<std::uint64_t> stepsOfModelFile(const std::string& path);

}  // namespace cleave
