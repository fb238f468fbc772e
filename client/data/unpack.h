// Reads a data file into memory and unpacks it if it is gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/core/error.h"

namespace cleave {

inline constexpr std::size_t kMaxDataBytes = std::size_t{4} << 30;  // of one split, unpacked

// Returns the content of the file at `path`, unpacked if it is gzip (detected by content, not by
// name). Memory use is bounded by the actual content and by `limit`, not by the size that the file
// declares. Throws UsageError: data-missing, data-empty, data-damaged.
std::vector<std::uint8_t> readUnpacked(const std::string& path, std::size_t limit);

// Throws UsageError data-damaged: "PATH FAULT".
[[noreturn]] void throwDamaged(const std::string& path, const std::string& fault,
                               const std::string& hint = "download the file again");

}  // namespace cleave
