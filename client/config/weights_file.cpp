#include "client/config/weights_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <span>

#include "common/core/printable.h"
#include "common/files/file_kind.h"

namespace cleave {
namespace {

void refuseOtherFormat(const std::string& bytes, const std::string& path) {
  const FileKind kind = fileKindOf(bytes);
  if (kind == FileKind::unknown || kind == FileKind::safetensors) return;
  const bool canConvert = kind == FileKind::zip || kind == FileKind::pickle;
  throw UsageError(
      "bad-safetensors", path + " is " + std::string(nameOf(kind)) + ", not a safetensors file",
      canConvert ? "convert it, which does not execute the pickle: pip install ./python && "
                   "python3 -m cleave_split.convert " +
                       path + " weights.safetensors"
                 : "load the weights in Python, and write them with "
                   "safetensors.torch.save_file");
}

std::vector<NamedTensor> readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    throw UsageError(
        "no-weights", "cannot read the weights " + path,
        "give a safetensors file, or omit weights to initialise the model from the seed");
  }
  refuseOtherFormat(bytes, path);
  return fromSafetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), path);
}

void rename(std::vector<NamedTensor>& weights, const WeightsSettings& settings) {
  std::set<std::string> names;
  for (NamedTensor& tensor : weights) {
    for (const auto& [from, to] : settings.rename) {
      if (!tensor.name.starts_with(from)) continue;
      tensor.name = to + tensor.name.substr(from.size());
      break;
    }
    if (names.insert(tensor.name).second) continue;
    throw UsageError("bad-weights",
                     "weights.rename gives two tensors of " + settings.file + " the name " +
                         printable(tensor.name),
                     "use longer prefixes in weights.rename");
  }
}

// The shapes of all saved tensors of the model, by name.
std::map<std::string, Shape> shapesOf(const std::vector<BlockSpec>& blocks) {
  std::map<std::string, Shape> shapes;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& tensor : block.tensors) {
      if (tensor.isSaved) shapes[tensor.name] = tensor.shape;
    }
  }
  return shapes;
}

std::string listOf(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t n = 0; n < std::min(names.size(), kShown); ++n) {
    text += (n == 0 ? "" : ", ") + printable(names[n]);
  }
  return names.size() > kShown ? text + ", …" : text;
}

}  // namespace

std::string toString(const WeightsReport& report) {
  std::string text = std::to_string(report.loaded) + " tensors loaded";
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    if (names.empty()) return;
    text += "; " + std::to_string(names.size()) + " " + what + ": " + listOf(names);
  };
  add(report.fresh, "initialised");
  add(report.unexpected, "not in the model");
  return text;
}

std::vector<NamedTensor> readWeightsFile(const WeightsSettings& settings,
                                         const std::vector<BlockSpec>& blocks,
                                         const std::map<std::string, std::string>& aliases,
                                         WeightsReport* report) {
  std::vector<NamedTensor> weights = readFile(settings.file);
  rename(weights, settings);
  std::erase_if(weights, [&](const NamedTensor& tensor) { return aliases.contains(tensor.name); });
  const std::map<std::string, Shape> shapes = shapesOf(blocks);
  WeightsReport found;
  if (settings.partial) {
    std::erase_if(weights, [&](const NamedTensor& tensor) {
      const auto own = shapes.find(tensor.name);
      if (own == shapes.end()) found.unexpected.push_back(tensor.name);
      return own == shapes.end() || own->second != tensor.tensor.sizes().vec();
    });
    checkBlockNames(settings.except, blocks);
    if (weights.empty()) {
      throw UsageError(
          "bad-weights",
          "no tensor of " + settings.file +
              " has the name and shape of a tensor of the "
              "model, such as " +
              (shapes.empty() ? "" : shapes.begin()->first),
          "set weights.rename, such as [module.=] to remove the prefix 'module.' from all names");
    }
  } else {
    checkWeights(weights, blocks, settings.except, settings.file);
  }
  for (const BlockSpec& block : blocks) {
    const auto& except = settings.except;
    if (std::find(except.begin(), except.end(), block.name) == except.end()) continue;
    for (const ParameterSpec& own : block.tensors) {
      std::erase_if(weights, [&](const NamedTensor& tensor) { return tensor.name == own.name; });
    }
  }
  std::set<std::string> loaded;
  for (const NamedTensor& tensor : weights) loaded.insert(tensor.name);
  found.loaded = loaded.size();
  for (const auto& [name, shape] : shapes) {
    if (!loaded.contains(name)) found.fresh.push_back(name);
  }
  if (report != nullptr) *report = std::move(found);
  return weights;
}

}  // namespace cleave
