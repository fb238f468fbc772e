#include "client/run/saved_model.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <system_error>

#include "common/codec/safetensors.h"
#include "common/core/error.h"
#include "common/files/environment.h"

namespace cleave {
namespace {

// The keys of the metadata. Hugging Face's readers require "format".
constexpr const char* kVersion = "cleave.version";
constexpr const char* kRun = "cleave.run";
constexpr const char* kSteps = "cleave.steps";
constexpr const char* kConfig = "cleave.config";
constexpr const char* kLearned = "cleave.data";
constexpr const char* kTrainDigest = "cleave.train_data";
constexpr const char* kClasses = "cleave.classes";
constexpr const char* kLora = "cleave.lora";

// The configuration's sections that describe the model. Omits the sections that are specific to a
// machine or a training run, such as addresses, certificates and codecs.
std::string describingSections(const std::string& resolved) {
  const std::set<std::string> kept = {"run",   "model", "insert",   "data",
                                      "train", "eval",  "precision"};
  std::istringstream lines(resolved);
  std::string text;
  bool isKept = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != ' ' && line[0] != '#') {
      isKept = kept.contains(line.substr(0, line.find(':')));
    }
    if (isKept) text += line + "\n";
  }
  return text;
}

// Reads the file up to the end of its header.
std::vector<std::byte> readHeader(const std::string& path) {
  constexpr std::uint64_t kMaxHeader = 100'000'000;
  std::ifstream file(path, std::ios::binary);
  const std::string missing =
      file.is_open() ? "it is too short" : std::generic_category().message(errno);
  std::array<char, 8> length{};
  std::uint64_t bytes = 0;
  if (!file.read(length.data(), length.size())) {
    throw UsageError("no-model", "cannot read the model " + path + ": " + missing,
                     "give the folder of a run that has finished an epoch, or a safetensors file");
  }
  std::memcpy(&bytes, length.data(), sizeof bytes);
  if (bytes > kMaxHeader) {
    throw UsageError("no-model", path + " is not a safetensors file",
                     "give the file model.safetensors of a run");
  }
  std::vector<std::byte> header(length.size() + bytes);
  std::memcpy(header.data(), length.data(), length.size());
  file.read(reinterpret_cast<char*>(header.data() + length.size()),
            static_cast<std::streamsize>(bytes));
  header.resize(length.size() + static_cast<std::size_t>(file.gcount()));
  return header;
}

}  // namespace

std::string modelFileOf(const std::string& source, bool best) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(source, ignored)) return source;
  const std::string path = source + (best ? "/model.best.safetensors" : "/model.safetensors");
  if (std::filesystem::exists(path, ignored)) return path;
  throw UsageError(
      "no-model", source + " has no " + std::filesystem::path(path).filename().string(),
      best ? "omit --best; a run keeps its best model if keep.best is set in its configuration"
           : "train for at least an epoch, with a server that has weights.fetch: true");
}

std::map<std::string, std::string> ModelDescription::toMetadata() const {
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {kVersion, softwareVersion()},
                                                 {kRun, run},
                                                 {kSteps, std::to_string(steps)},
                                                 {kConfig, config},
                                                 {kLearned, learned.dump()},
                                                 {kTrainDigest, toJson(trainDigest).dump()},
                                                 {kClasses, nlohmann::json(classes).dump()}};
  if (loraScale > 0) {
    const nlohmann::json lora = {{"scale", loraScale}, {"inputs_first", inputsFirst}};
    metadata[kLora] = lora.dump();
  }
  return metadata;
}

ModelDescription describeModel(const PreparedRun& run) {
  ModelDescription description;
  description.run = run.settings.name;
  description.config = describingSections(run.settings.resolved);
  description.learned = run.data.train->learned();
  description.trainDigest = run.trainDigest;
  const std::vector<std::string>& names = run.settings.data.classNames;
  description.classes = names.empty() ? run.data.train->classNames() : names;
  if (run.settings.lora.rank > 0) {
    description.loraScale = run.settings.lora.scale();
    description.inputsFirst = run.userModel->inputsFirst();
  }
  return description;
}

SavedModel openSavedModel(const std::string& source, bool best) {
  SavedModel model;
  model.path = modelFileOf(source, best);
  const auto metadata = readSafetensorsMetadata(readHeader(model.path), model.path);
  const auto valueOf = [&](const char* key) {
    const auto found = metadata.find(key);
    if (found != metadata.end()) return found->second;
    throw UsageError(
        "no-description",
        model.path + " has no description of its model: its metadata lacks " + key,
        "use a model file that a run has written; eval and predict also accept --config FILE");
  };
  try {
    ModelDescription& description = model.description;
    description.run = valueOf(kRun);
    const std::string steps = valueOf(kSteps);
    std::from_chars(steps.data(), steps.data() + steps.size(), description.steps);
    description.config = valueOf(kConfig);
    description.learned = nlohmann::json::parse(valueOf(kLearned));
    description.classes = nlohmann::json::parse(valueOf(kClasses));
    if (metadata.contains(kTrainDigest)) {
      description.trainDigest = dataDigestFrom(nlohmann::json::parse(metadata.at(kTrainDigest)));
    }
    if (metadata.contains(kLora)) {
      const auto lora = nlohmann::json::parse(metadata.at(kLora));
      description.loraScale = lora.at("scale");
      description.inputsFirst = lora.at("inputs_first");
    }
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(
        "no-description", model.path + ": its metadata is damaged: " + error.what(),
        "use a model file that a run has written; eval and predict also accept --config FILE");
  }
  return model;
}

std::optional<std::uint64_t> stepsOfModelFile(const std::string& path) {
  try {
    return openSavedModel(path, false).description.steps;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace cleave
