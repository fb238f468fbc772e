// UTF-8 and character properties, for tokenizers. The properties match Hugging Face's library
// `tokenizers`, whose tables are from Unicode 8, so that pretrained models get the token ids that
// they were trained with.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cleave {

// The position of the first byte, from `begin` on, that does not belong to a character; npos: none.
std::size_t findInvalidUtf8(std::string_view bytes, std::size_t begin = 0);
bool isUtf8(std::string_view bytes);
// Each invalid sequence becomes U+FFFD, as in Python's decode("utf-8", errors="replace").
std::string replaceInvalidUtf8(std::string_view bytes);

// The character at `position` of valid UTF-8. Moves `position` to the next one.
char32_t nextCharacter(std::string_view text, std::size_t& position);
void appendCharacter(std::string& text, char32_t character);

bool isWhitespace(char32_t character);
bool isPunctuation(char32_t character);  // Unicode's categories P, and ASCII symbols such as '$'
bool isControlOrFormat(char32_t character);  // categories Cc, Cf, Co
bool isNonspacingMark(char32_t character);   // category Mn

std::string toLower(std::string_view text);  // character by character, without context
enum class NormalForm { nfc, nfd, nfkc, nfkd };
// Throws UsageError if the text is longer than 1 GiB.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace cleave
