// The safetensors format (8-byte little-endian header length, JSON header, raw bytes), written and
// read with limits: files and bytes of a peer are hostile. Format:
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// dtype as the format names it, such as "F32", "BF16" or "I64".
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // contiguous, little-endian; borrowed
};

// What a file says, fit for a terminal: as in a JSON string of ASCII only.
std::string inAscii(const std::string& text);

// Entries in the given order; `metadata` becomes __metadata__.
std::vector<std::byte> writeSafetensors(const std::vector<SafetensorsEntry>& entries,
                                        const std::map<std::string, std::string>& metadata = {});

// The entries point into `file`. Throws UsageError that names the fault: too short, header length
// beyond the file or 100 MB, not JSON, nested or repeated names, unknown dtype, rank > 8, shape and
// bytes disagree, offsets that overlap, leave gaps, or leave the file. `name` stands for the file
// in errors.
std::vector<SafetensorsEntry> readSafetensors(std::span<const std::byte> file,
                                              const std::string& name);

}  // namespace cleave
