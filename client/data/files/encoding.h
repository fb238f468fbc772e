// Reads files of text as UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

// The text of a file, plain or gzip, as UTF-8 without a byte order mark. Text in UTF-16 with a byte
// order mark is converted. Throws UsageError: data-missing, data-empty, data-damaged (such as any
// other encoding, UTF-16 without a byte order mark, or a spreadsheet's own format).
std::vector<std::uint8_t> readText(const std::string& path);

}  // namespace cleave
