// The model "graph" of a run: the user's model file, cut at model.cuts.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/config/settings.h"
#include "client/data/samples/dataset.h"
#include "common/graph/cuts.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"

namespace cleave {

class UserModel {
 public:
  // Throws UsageError if the file cannot be used, a cut is not possible, or adapters have no layer
  // to adapt. `blockNames`: see blocksOfParts().
  explicit UserModel(const ClientSettings& settings,
                     const std::vector<std::string>& blockNames = {});

  // Returns the data with only those arrays that are inputs of the model. Arrays with names are
  // selected by name. Throws UsageError "bad-input" if the arrays do not fit the model.
  Datasets inputsFrom(const Datasets& data) const;

  // Returns the configured cuts and up to 32 others among which a plan may choose, in the order of
  // the model.
  std::vector<std::string> possibleCuts(const ClientSettings& settings) const;
  // Returns, for each of these cuts, the block that follows it in a model that is divided at all
  // cuts of `blocks`. Throws UsageError "other-profile" if `blocks` lacks a cut, or the model does.
  std::vector<int> positionsAmong(const std::vector<std::string>& cuts,
                                  const std::vector<std::string>& blocks) const;

  const GraphBlocks& blocks() const { return blocks_; }
  // The values for RunSpec::graph, one per body.
  const std::vector<std::string>& packedBodies() const { return packedBodies_; }
  // The value for RunSpec::graphDigest.
  const std::string& digest() const { return digest_; }
  std::vector<NamedTensor> readWeights() const { return file_.readWeights(); }
  // The adapted layers whose weight is [inputs, outputs].
  const std::vector<std::string>& inputsFirst() const { return inputsFirst_; }
  // See GraphProgram::drawnInEvaluation().
  std::vector<std::string> drawnInEvaluation() const;
  // See GraphFile::aliases().
  const std::map<std::string, std::string>& aliases() const { return file_.aliases(); }

 private:
  GraphFile file_;
  GraphBlocks blocks_;
  std::vector<std::string> packedBodies_;
  std::string digest_;
  std::vector<std::string> inputsFirst_;
};

}  // namespace cleave
