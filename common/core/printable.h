// Makes text from a peer safe for terminals, logs and CSV files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cleave {

// Default limit in bytes; longer than any name or sentence that Cleave itself produces.
inline constexpr std::size_t kMaxTextBytes = 1024;

// The text as one line of valid UTF-8 without characters that control a terminal or hide text: line
// breaks and tabs become spaces; other control characters (C0, C1, DEL), bytes that are not UTF-8,
// and characters that are invisible or change the writing direction become '?'. A text longer than
// `maxBytes` (at least 3) is truncated and ends with "…".
std::string printable(std::string_view text, std::size_t maxBytes = kMaxTextBytes);

}  // namespace cleave
