// The model "graph" of a run: the user's file, cut where the configuration says.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/data/dataset.h"
#include "client/train/settings.h"
#include "common/graph/cuts.h"
#include "common/model/graph_blocks.h"
#include "common/model/graph_file.h"

namespace cleave {

class UserModel {
 public:
  // Throws UsageError if the file cannot be used, a cut is not possible, or the model does not fit
  // the data.
  UserModel(const ClientSettings& settings, const Dataset& train);

  const GraphBlocks& blocks() const { return blocks_; }
  // RunSpec::graph
  const std::string& packedBody() const { return packedBody_; }
  // RunSpec::graphDigest
  std::string digest() const;
  std::vector<NamedTensor> readWeights() const { return file_.readWeights(); }

 private:
  GraphFile file_;
  GraphBlocks blocks_;
  std::string packedBody_;
};

}  // namespace cleave
