// Writes trained adapters (LoRA) in the format of Hugging Face PEFT: a folder with
// adapter_model.safetensors and adapter_config.json, which PeftModel.from_pretrained() loads.
#pragma once

#include <string>
#include <vector>

#include "common/codec/safetensors.h"
#include "common/graph/adapters.h"
#include "common/model/model.h"

namespace cleave {

// Whether PEFT's format can store everything that `blocks` train. Besides adapters, the format
// stores only parameters of modules without adapters, and no inserts.
bool fitsPeft(const std::vector<BlockSpec>& blocks);

// Requires fitsPeft(). `weights`: the weights of the whole model. Besides the adapters, the folder
// also contains the other parameters that `blocks` train. Its files are replaced one by one. Throws
// RunError "cannot-write".
void writeAdapters(const std::string& folder, const LoraSpec& lora,
                   const std::vector<BlockSpec>& blocks,
                   const std::vector<SafetensorsEntry>& weights);

}  // namespace cleave
