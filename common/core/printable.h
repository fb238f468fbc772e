// Makes text from a peer safe for terminals, logs and CSV files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cleave {

// In bytes; longer than any name or sentence of Cleave's own.
inline constexpr std::size_t kMaxTextBytes = 1024;

// The text as one line of valid UTF-8 without characters that act on a terminal or hide text: line
// breaks and tabs become spaces; other control characters (C0, C1, DEL), bytes that are not UTF-8,
// and characters that are invisible or change the direction of writing become '?'. A text longer
// than `maxBytes`, which is at least 3, is cut and ends with "…".
std::string printable(std::string_view text, std::size_t maxBytes = kMaxTextBytes);

}  // namespace cleave
