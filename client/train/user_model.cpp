#include "client/train/user_model.h"

#include <spdlog/fmt/fmt.h>

#include "common/checkpoint/checkpoint_store.h"
#include "common/graph/packed_graph.h"
#include "common/model/blocks.h"

namespace cleave {
namespace {

void checkInputs(const GraphFile& file, const Dataset& train) {
  const auto& inputs = file.graph().inputs();
  if (inputs.size() != 1) {
    throw UsageError("bad-sample-shape",
                     fmt::format("{} takes {} inputs, but a sample of the data is one array",
                                 file.path(), inputs.size()),
                     "export a model with one input");
  }
  const wire::Value& input = file.graph().values(static_cast<int>(inputs[0]));
  const Shape shape(input.shape().begin() + 1, input.shape().end());
  if (input.dtype() == "f32" && shape == train.sampleShape()) return;
  throw UsageError(
      "bad-sample-shape",
      fmt::format("{} takes samples of {} in {}, but those of the data are {} in f32", file.path(),
                  toString(shape), input.dtype(), toString(train.sampleShape())),
      "export the model with an example of the data's shape");
}

void checkOutput(const GraphFile& file, const Dataset& train) {
  const wire::Value& output = file.graph().values(static_cast<int>(file.graph().outputs(0)));
  if (output.shape_size() == 2 && output.shape(1) == train.classes()) return;
  throw UsageError("bad-classes",
                   fmt::format("{} returns {}, but the data has {} classes", file.path(),
                               shapeText(output), train.classes()),
                   fmt::format("export a model that returns [samples, {}]", train.classes()));
}

GraphParts cutInThree(const GraphFile& file, const std::vector<std::string>& names) {
  const GraphCuts cuts(file.graph());
  if (names.size() != 2) {
    throw UsageError("bad-cuts", "model.cuts does not name two modules to cut after",
                     "list the possible ones: cleave-client models show " + file.path());
  }
  return cuts.split(cuts.find(names[0]), cuts.find(names[1]));
}

}  // namespace

UserModel::UserModel(const ClientSettings& settings, const Dataset& train)
    : file_(settings.modelFile) {
  checkInputs(file_, train);
  checkOutput(file_, train);
  const GraphParts parts = cutInThree(file_, settings.cutNames);
  blocks_ = blocksOfParts(parts);
  packedBody_ = packGraph(parts.body.graph);
}

std::string UserModel::digest() const { return sha256Of(file_.graph().SerializeAsString()); }

}  // namespace cleave
