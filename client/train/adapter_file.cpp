#include "client/train/adapter_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/core/bytes.h"
#include "common/core/durable.h"

namespace cleave {
namespace {

// The module of a parameter: "a.b" for "a.b.lora_A.weight" and for "a.b.weight".
std::string moduleOf(const std::string& parameter) {
  const std::size_t end = parameter.rfind(isAdapter(parameter) ? ".lora_" : ".");
  return parameter.substr(0, end);
}

std::set<std::string> trainedNames(const std::vector<BlockSpec>& blocks) {
  std::set<std::string> names;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& tensor : block.tensors) {
      if (!tensor.isBuffer && tensor.isTrainable) names.insert(tensor.name);
    }
  }
  return names;
}

}  // namespace

bool fitsPeft(const std::vector<BlockSpec>& blocks) {
  for (const BlockSpec& block : blocks) {
    const auto& tensors = block.tensors;
    if (std::any_of(tensors.begin(), tensors.end(), [](const auto& each) { return each.isInsert; }))
      return false;
  }
  std::set<std::string> adapted, others;
  for (const std::string& name : trainedNames(blocks)) {
    (isAdapter(name) ? adapted : others).insert(moduleOf(name));
  }
  return std::none_of(adapted.begin(), adapted.end(),
                      [&](const std::string& module) { return others.contains(module); });
}

void writeAdapters(const std::string& folder, const LoraSpec& lora,
                   const std::vector<BlockSpec>& blocks,
                   const std::vector<SafetensorsEntry>& weights) {
  const std::set<std::string> trained = trainedNames(blocks);
  std::set<std::string> targets, saved;
  std::vector<SafetensorsEntry> entries;
  for (SafetensorsEntry entry : weights) {
    if (!trained.contains(entry.name)) continue;
    (isAdapter(entry.name) ? targets : saved).insert(moduleOf(entry.name));
    entry.name = "base_model.model." + entry.name;
    entries.push_back(std::move(entry));
  }
  nlohmann::json config = {{"peft_type", "LORA"},
                           {"r", lora.rank},
                           {"lora_alpha", lora.scale() * static_cast<double>(lora.rank)},
                           {"lora_dropout", lora.dropout},
                           {"target_modules", targets},
                           {"modules_to_save", nullptr},
                           {"bias", "none"},
                           {"task_type", nullptr},
                           {"base_model_name_or_path", nullptr},
                           {"inference_mode", true}};
  if (!saved.empty()) config["modules_to_save"] = saved;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throwCannotWrite(folder, "the folder could not be created", error.value());
  writeFileDurably(folder + "/adapter_model.safetensors",
                   textOf(writeSafetensors(entries, {{"format", "pt"}})));
  writeFileDurably(folder + "/adapter_config.json", config.dump(2) + "\n");
}

}  // namespace cleave
