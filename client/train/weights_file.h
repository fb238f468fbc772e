// The file with initial weights (`weights` in the configuration).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/stage.h"

namespace cleave {

struct WeightsSettings {
  std::string file;                 // safetensors; empty: random from the seed
  std::vector<std::string> except;  // blocks that are initialised from the seed instead
  // Replaces the beginning of names: the first text by the second. The first rule that fits a name
  // applies.
  std::vector<std::pair<std::string, std::string>> rename;
  // Tensors that are missing in the file, or have another shape there, are initialised from the
  // seed; tensors that the model does not have are ignored.
  bool partial = false;
};

struct WeightsReport {
  std::size_t loaded = 0;
  std::vector<std::string> fresh;       // of the model, initialised from the seed
  std::vector<std::string> unexpected;  // of the file, not in the model
};
// "310 tensors loaded; 2 initialised: classifier.1.weight, classifier.1.bias"
std::string toString(const WeightsReport& report);

// The weights that a run takes from the file. `aliases`: further names of tensors, which are
// ignored. Throws UsageError if the file is unreadable or from another model.
std::vector<NamedTensor> readWeightsFile(const WeightsSettings& settings,
                                         const std::vector<BlockSpec>& blocks,
                                         const std::map<std::string, std::string>& aliases,
                                         WeightsReport* report = nullptr);

}  // namespace cleave
