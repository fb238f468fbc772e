// Reads files of text as UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

// The text of a file, plain or gzip, without its byte order mark. Text in UTF-16 with a byte order
// mark is converted; any other text is returned unchanged, also if it is not UTF-8. Throws
// UsageError: data-missing, data-empty, data-damaged (such as UTF-16 without a byte order mark, or
// a spreadsheet's own format).
std::vector<std::uint8_t> readText(const std::string& path);

}  // namespace cleave
