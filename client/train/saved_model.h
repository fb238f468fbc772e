// The description of a model in the metadata of model.safetensors. With it, the commands eval,
// predict and export need only that file, not the run's folder.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/train/prepare.h"

namespace cleave {

struct ModelDescription {
  // run.name. The run's id is not in the file, so that runs of one configuration write equal files.
  std::string run;
  std::uint64_t steps = 0;
  // YAML: the sections run, model, data, train, eval and precision of the run's configuration.
  std::string config;
  nlohmann::json learned;            // Dataset::learned() of the training set
  std::vector<std::string> classes;  // names; empty: none
  // Adapters, in the file beside the weights that they change (common/graph/adapters.h). 0: none.
  double loraScale = 0;
  std::vector<std::string> inputsFirst;  // LinearModule::inputsFirst, of the adapted layers

  // Keys and values of the metadata; the values are text.
  std::map<std::string, std::string> toMetadata() const;
};
ModelDescription describeModel(const PreparedRun& run);

struct SavedModel {
  std::string path;
  ModelDescription description;
};
// `source`: the folder of a run, or a file. In a folder, the file is model.safetensors, or with
// `best` model.best.safetensors. Throws UsageError "no-model" if it does not exist.
std::string modelFileOf(const std::string& source, bool best);
// Throws UsageError "no-model" if modelFileOf() does or the file is not safetensors,
// "no-description" if the file has no description.
SavedModel openSavedModel(const std::string& source, bool best);

}  // namespace cleave
