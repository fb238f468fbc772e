// The file with initial weights (`weights` in the configuration).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/stage/stage.h"

namespace cleave {

struct WeightsSettings {
  std::string file;                 // safetensors file; empty: random weights from the seed
  std::vector<std::string> except;  // blocks that are initialised from the seed instead
  // Rules that rename tensors. If a name starts with the first text of a rule, this prefix is
  // replaced by the second text. Only the first matching rule applies to a name.
  std::vector<std::pair<std::string, std::string>> rename;
  // If true, tensors that are missing in the file or have another shape in it are initialised from
  // the seed, and tensors that the model does not have are ignored.
  bool partial = false;
};

struct WeightsReport {
  std::size_t loaded = 0;
  std::vector<std::string> fresh;       // the model's tensors that are initialised from the seed
  std::vector<std::string> unexpected;  // tensors in the file that the model does not have
};
// Returns "310 tensors loaded; 2 initialised: classifier.1.weight, classifier.1.bias".
std::string toString(const WeightsReport& report);

// Returns the weights that a run takes from the file. Tensors whose names are keys of `aliases` are
// ignored. Throws UsageError if the file is unreadable or does not fit the model.
std::vector<NamedTensor> readWeightsFile(const WeightsSettings& settings,
                                         const std::vector<BlockSpec>& blocks,
                                         const std::map<std::string, std::string>& aliases,
                                         WeightsReport* report = nullptr);

}  // namespace cleave
