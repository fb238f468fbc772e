// Reads and writes the safetensors format (8-byte little-endian header length, JSON header, raw
// bytes). The reader enforces limits, since files and bytes from a peer are untrusted. Format:
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

// `dtype` is the format's own name, such as "F32", "BF16" or "I64".
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // contiguous, little-endian; borrowed
};

// Escapes text from a file as in an ASCII-only JSON string, so that it is safe to print on a
// terminal.
std::string inAscii(const std::string& text);

// The first part of a file with these entries: header length and header. Their bytes follow in the
// given order. `metadata` becomes __metadata__.
std::vector<std::byte> safetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                                         const std::map<std::string, std::string>& metadata = {});
// The whole file.
std::vector<std::byte> writeSafetensors(const std::vector<SafetensorsEntry>& entries,
                                        const std::map<std::string, std::string>& metadata = {});

// The returned entries point into `file`. Throws UsageError that names the fault: file too short,
// header length beyond the file or above 100 MB, not JSON, too deeply nested, repeated names,
// unknown dtype, rank > 8, shape and byte count disagree, offsets that overlap, leave gaps, or
// point outside the file. `name` identifies the file in errors.
std::vector<SafetensorsEntry> readSafetensors(std::span<const std::byte> file,
                                              const std::string& name);
// The file's __metadata__; empty if it has none. Reads only the header, so `file` may end after it.
std::map<std::string, std::string> readSafetensorsMetadata(std::span<const std::byte> file,
                                                           const std::string& name);

}  // namespace cleave
