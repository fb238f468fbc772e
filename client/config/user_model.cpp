#include "client/config/user_model.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/core/printable.h"
#include "common/files/sha256.h"
#include "common/graph/adapters.h"
#include "common/graph/packed_graph.h"
#include "common/model/blocks.h"
#include "common/model/graph/graph_program.h"

namespace cleave {
namespace {

// How the data or the model can be changed so that the shapes agree.
std::string fitHint(const Shape& required, const Shape& given) {
  const std::string exported = "export the model with an example of the data's shape and type";
  const bool areImages = required.size() == 3 && given.size() == 3;
  if (!areImages || required[1] != required[2] || required == given) return exported;
  if (required[0] == given[0])
    return fmt::format("set data.resize: {0} (and data.crop: {0}, if you crop), or {1}",
                       required[1], exported);
  return fmt::format(
      "set data.channels: {} and data.resize: {} if the data's format has these keys, or {}",
      required[0], required[1], exported);
}

// The embedding in which the model looks up an input; null if there is none.
const wire::Node* tableOf(const wire::Graph& graph, std::uint32_t input) {
  const GraphIds owners = memoryOwners(graph);
  const wire::Node* found = nullptr;
  std::int64_t rows = 0;
  for (const wire::Node& node : graph.nodes()) {
    const wire::Argument* const indices = findArgument(node, "indices");
    const wire::Argument* const table = findArgument(node, "weight");
    if (node.op() != "aten.embedding.default" || indices == nullptr || table == nullptr) continue;
    if (owners[indices->tensor()] != input) continue;
    const wire::Value& weight = graph.values(static_cast<int>(table->tensor()));
    if (!isWeight(weight) || weight.shape_size() != 2) continue;
    if (found != nullptr && weight.shape(0) >= rows) continue;
    found = &node;
    rows = weight.shape(0);
  }
  return found;
}

// If the data knows its largest id, a run with ids beyond a table need not start.
void checkIds(const GraphFile& file, int input, const SampleArray& array) {
  const wire::Graph& graph = file.graph();
  const wire::Node* const node = tableOf(graph, graph.inputs(input));
  if (node == nullptr) return;
  const std::uint32_t table = findArgument(*node, "weight")->tensor();
  const std::int64_t rows = graph.values(static_cast<int>(table)).shape(0);
  if (array.minValue < 0) {
    throw UsageError("bad-index",
                     fmt::format("the data has the id {} in {}, but ids begin at 0", array.minValue,
                                 printable(array.name)),
                     "correct the data, such as the id that pads short samples");
  }
  if (array.maxValue < rows) return;
  throw UsageError(
      "bad-index",
      fmt::format("the data has the id {} in {}, which is beyond the end of one of the "
                  "model's tables: {} has {} rows",
                  array.maxValue, printable(array.name), nodeText(*node), rows),
      "use the tokenizer that belongs to the model, or enlarge the model's embedding "
      "in Python, as in model.resize_token_embeddings(len(tokenizer)), and export it "
      "again");
}

void checkInputs(const GraphFile& file, const std::vector<SampleArray>& arrays) {
  const auto& inputs = file.graph().inputs();
  for (int n = 0; n < inputs.size(); ++n) {
    const wire::Value& input = file.graph().values(static_cast<int>(inputs[n]));
    const Shape shape(input.shape().begin() + 1, input.shape().end());
    const SampleArray& array = arrays[static_cast<std::size_t>(n)];
    if (input.dtype() == dtypeName(array.dtype) && shape == array.shape) {
      checkIds(file, n, array);
      continue;
    }
    throw UsageError(
        "bad-input",
        fmt::format("{} requires the input {} of {} in {} per sample, but the data has {}",
                    file.path(), printable(file.inputNames()[static_cast<std::size_t>(n)]),
                    toString(shape), input.dtype(), toString(array)),
        fitHint(shape, array.shape));
  }
}

std::shared_ptr<const Dataset> withInputsOf(const GraphFile& file,
                                            std::shared_ptr<const Dataset> data) {
  const std::vector<SampleArray> arrays = data->arrays();
  // A single array needs no name, unless the target has the input's name, as for a language model.
  const bool isTarget = arrays.back().name == file.inputNames().front();
  const bool isOnly = arrays.size() == 2 && file.inputNames().size() == 1 && !isTarget;
  if (!arrays.front().name.empty() && !isOnly) data = selectInputs(data, file.inputNames());
  const std::size_t inputs = data->arrays().size() - 1;
  if (inputs != file.inputNames().size()) {
    throw UsageError("bad-input",
                     fmt::format("{} takes {} inputs, but a sample of the data has {}", file.path(),
                                 file.inputNames().size(), inputs),
                     "export a model with one input, or use data.format: tensors");
  }
  checkInputs(file, data->arrays());
  return data;
}

// Adds the adapters. Returns the adapted layers whose weight is [inputs, outputs].
std::vector<std::string> adapt(GraphParts& parts, const LoraSpec& lora) {
  std::vector<std::string> adapted, layers, inputsFirst;
  std::set<std::string> readOtherwise;
  for (const GraphPart* part : parts.all()) {
    readOtherwise.merge(modulesReadOtherwise(part->graph));
  }
  std::vector<std::pair<const char*, GraphPart*>> named = {{"head", &parts.head}};
  for (GraphPart& body : parts.bodies) named.emplace_back("body", &body);
  named.emplace_back("tail", &parts.tail);
  for (const auto& [name, part] : named) {
    const std::vector<LinearModule> modules = linearModules(part->graph);
    if (std::find(lora.parts.begin(), lora.parts.end(), std::string_view(name)) == lora.parts.end())
      continue;
    for (const LinearModule& module : modules) layers.push_back(module.name);
    for (std::string& layer : addAdapters(part->graph, lora)) {
      const auto module = std::find_if(modules.begin(), modules.end(),
                                       [&](const auto& each) { return each.name == layer; });
      if (module->inputsFirst) inputsFirst.push_back(layer);
      if (readOtherwise.contains(layer)) {
        throw UsageError(
            "bad-lora",
            "the weight of " + printable(layer) +
                " is used by a linear layer and by another layer, such as an embedding",
            "choose model.lora.targets that do not match " + printable(layer))
            .about("model.lora");
      }
      adapted.push_back(std::move(layer));
    }
  }
  const auto isUsed = [&](const std::string& target) {
    LoraSpec one = lora;
    one.targets = {target};
    return std::any_of(adapted.begin(), adapted.end(),
                       [&](const std::string& module) { return isTarget(one, module); });
  };
  const auto unused = std::find_if_not(lora.targets.begin(), lora.targets.end(), isUsed);
  if (unused == lora.targets.end() && !adapted.empty()) return inputsFirst;
  constexpr std::size_t kShown = 8;
  std::string shown;
  for (std::size_t n = 0; n < std::min(layers.size(), kShown); ++n) {
    shown += (n == 0 ? "" : ", ") + printable(layers[n]);
  }
  throw UsageError(
      "bad-lora",
      lora.targets.empty() ? std::string("model.lora.targets is empty")
                           : "'" + *unused + "' in model.lora.targets matches no linear layer of " +
                                 "model.lora.parts",
      layers.empty()
          ? "these parts have no linear layers"
          : fmt::format(
                "their linear layers are {}{}", shown,
                layers.size() > kShown ? fmt::format(" and {} more", layers.size() - kShown) : ""))
      .about("model.lora");
}

std::vector<GraphCut> cutsNamed(const GraphCuts& cuts, const std::vector<std::string>& names) {
  std::vector<GraphCut> found;
  for (const std::string& name : names) found.push_back(cuts.find(name));
  return found;
}

GraphParts divide(const GraphFile& file, const std::vector<std::string>& names) {
  const GraphCuts cuts(file.graph());
  if (names.empty()) {
    throw UsageError("bad-cuts", "model.cuts must name the modules after which the model is cut",
                     "list the possible ones: cleave-client models show " + file.path())
        .about("model.cuts");
  }
  return cuts.split(cutsNamed(cuts, names));
}

}  // namespace

UserModel::UserModel(const ClientSettings& settings, const std::vector<std::string>& blockNames)
    : file_(settings.modelFile) {
  GraphParts parts = divide(file_, settings.cutNames);
  if (settings.lora.rank > 0) inputsFirst_ = adapt(parts, settings.lora);
  blocks_ = blocksOfParts(parts, blockNames);
  for (const GraphPart& body : parts.bodies) packedBodies_.push_back(packGraph(body.graph));
  std::string serialized;
  for (const GraphPart* part : parts.all()) serialized += part->graph.SerializeAsString();
  digest_ = sha256Of(serialized);
}

std::vector<std::string> UserModel::possibleCuts(const ClientSettings& settings) const {
  constexpr std::size_t kMax = 32;
  // Other cuts would move layers to a part without adapters, or to one with adapters.
  const bool adaptsSomeParts = settings.lora.rank > 0 && settings.lora.parts.size() < 3;
  if (adaptsSomeParts || !settings.inserts.empty()) return settings.cutNames;
  const GraphCuts cuts(file_.graph());
  std::vector<std::string> names;
  for (const GraphCut& cut : cuts.cutsBeside(cutsNamed(cuts, settings.cutNames), kMax)) {
    names.push_back(cut.names.front());
  }
  return names;
}

std::vector<int> UserModel::positionsAmong(const std::vector<std::string>& cuts,
                                           const std::vector<std::string>& blocks) const {
  const GraphCuts known(file_.graph());
  const auto otherProfile = [](const std::string& sentence) {
    return UsageError("other-profile", sentence,
                      "make both profiles again: cleave-client profile with this configuration, "
                      "then cleave-server profile");
  };
  std::vector<std::size_t> ends;
  try {
    for (const GraphCut& cut : cutsNamed(known, blocks)) ends.push_back(cut.position);
  } catch (const UsageError& error) {
    throw otherProfile("a profile is of another model: " + std::string(error.what()));
  }
  std::vector<int> positions;
  for (const GraphCut& cut : cutsNamed(known, cuts)) {
    const auto found = std::find(ends.begin(), ends.end(), cut.position);
    if (found == ends.end()) {
      throw otherProfile("a profile does not have the cut after " + printable(cut.names.front()));
    }
    positions.push_back(static_cast<int>(found - ends.begin()) + 1);
  }
  return positions;
}

std::vector<std::string> UserModel::drawnInEvaluation() const {
  return GraphProgram(file_.graph()).drawnInEvaluation();
}

Datasets UserModel::inputsFrom(const Datasets& data) const {
  return {withInputsOf(file_, data.train), withInputsOf(file_, data.test), data.balanced};
}

}  // namespace cleave
