// A data file in memory, unpacked where it is gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// The bytes of the file at `path`; those of a gzip file (told by content, not by name) unpacked.
// Memory grows with the bytes that are there and never beyond `limit`, whatever the file claims.
// Throws UsageError: data-missing, data-empty, data-damaged.
std::vector<std::uint8_t> readUnpacked(const std::string& path, std::size_t limit);

}  // namespace cleave
