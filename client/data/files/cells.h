// What all readers of text cells and labels share. No Torch.
#pragma once

#include <string>
#include <string_view>

namespace cleave {

// The text without blanks at its ends: spaces, tabs, carriage returns, and the no-break and thin
// spaces that spreadsheets write (U+00A0, U+2007, U+2009, U+202F).
std::string_view trimmed(std::string_view text);
std::string_view trimmedEnd(std::string_view text);
// The number of bytes of the blank at the beginning of the text; 0 if there is none.
std::size_t blankLength(std::string_view text);

// With lower-case letters of ASCII, for names of columns and files.
std::string lowerCase(std::string text);

// Whether the cell is empty, or is NaN, NA, N/A, #N/A, <NA>, null or None, in any case.
bool isMissing(std::string_view cell);

}  // namespace cleave
