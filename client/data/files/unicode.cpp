#include "client/data/files/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "client/data/files/damage.h"
#include "common/core/error.h"

namespace cleave {
namespace {

struct CharacterRange {
  char32_t first, last;
};

// Characters that were added after Unicode 8 and are punctuation, format characters or nonspacing
// marks. The table was made by comparing how `tokenizers` 0.23 treats each character with
// utf8proc's categories.
constexpr std::array<CharacterRange, 41> kNewerThanUnicode8 = {
    {{0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},
     {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},
     {0xC77, 0xC77},     {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x1886},
     {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
     {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},
     {0x10D24, 0x10F89}, {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111C9, 0x111C9},
     {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1145E},
     {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455},
     {0x16E97, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF},
     {0x1E944, 0x1E95F}}};

utf8proc_category_t categoryOf(char32_t character) {
  // The categories of these characters have changed since Unicode 8.
  if (character == 0x166D || character == 0x111C9) return UTF8PROC_CATEGORY_PO;
  if (character == 0x1734) return UTF8PROC_CATEGORY_MN;
  const auto range =
      std::lower_bound(kNewerThanUnicode8.begin(), kNewerThanUnicode8.end(), character,
                       [](const CharacterRange& each, char32_t c) { return each.last < c; });
  if (range != kNewerThanUnicode8.end() && character >= range->first) return UTF8PROC_CATEGORY_CN;
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool isContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Returns the length of the valid character at the beginning. If there is none, returns 0 and sets
// `invalid` to the number of bytes of the invalid sequence.
std::size_t characterLength(std::string_view bytes, std::size_t& invalid) {
  const auto at = [&](std::size_t n) { return static_cast<unsigned char>(bytes[n]); };
  invalid = 1;
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned char min = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char max = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (bytes.size() < 2 || at(1) < min || at(1) > max) return 0;
  for (std::size_t n = 2; n < length; ++n) {
    invalid = n;
    if (n >= bytes.size() || !isContinuation(at(n))) return 0;
  }
  return length;
}

}  // namespace

std::size_t findInvalidUtf8(std::string_view bytes, std::size_t begin) {
  std::size_t invalid = 0;
  for (std::size_t n = begin; n < bytes.size();) {
    if (static_cast<unsigned char>(bytes[n]) < 0x80) {
      ++n;
      continue;
    }
    const std::size_t length = characterLength(bytes.substr(n), invalid);
    if (length == 0) return n;
    n += length;
  }
  return std::string_view::npos;
}

bool isUtf8(std::string_view bytes) { return findInvalidUtf8(bytes) == std::string_view::npos; }

std::string replaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  std::size_t invalid = 0;
  for (std::size_t n = 0; n < bytes.size();) {
    const std::size_t length = characterLength(bytes.substr(n), invalid);
    text += length > 0 ? bytes.substr(n, length) : std::string_view("\xEF\xBF\xBD");
    n += length > 0 ? length : invalid;
  }
  return text;
}

char32_t nextCharacter(std::string_view text, std::size_t& position) {
  const auto byte = [&] {
    return position < text.size() ? static_cast<unsigned char>(text[position++]) : 0U;
  };
  const char32_t first = byte();
  if (first < 0x80) return first;
  const int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  char32_t character = first & (0x3FU >> more);
  for (int n = 0; n < more; ++n) character = character << 6 | (byte() & 0x3F);
  return character;
}

void appendCharacter(std::string& text, char32_t character) {
  if (character < 0x80) {
    text += static_cast<char>(character);
    return;
  }
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
}

bool isWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool isPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t category = categoryOf(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool isControlOrFormat(char32_t c) {
  if (c < 0x80) return c < ' ' || c == 0x7F;
  const utf8proc_category_t category = categoryOf(c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

bool isNonspacingMark(char32_t c) { return c >= 0x300 && categoryOf(c) == UTF8PROC_CATEGORY_MN; }

std::string toLower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const char32_t c = nextCharacter(text, position);
    if (c < 0x80) {
      lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    } else if (c == 0x130) {  // the only one that becomes two characters
      lower += "i\xCC\x87";
    } else {
      appendCharacter(lower,
                      static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

std::string normalize(std::string_view text, NormalForm form) {
  const bool isAscii = std::all_of(text.begin(), text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (isAscii) return std::string(text);
  if (text.size() > std::size_t{1} << 30)
    throw DataError("text-too-long", "a text is longer than 1 GiB", "split it into lines");
  constexpr auto option = [](int flags) { return static_cast<utf8proc_option_t>(flags); };
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool isCompatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = option((composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                              (isCompatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* made = nullptr;
  const auto count = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(made, std::free);
  if (count < 0) throw std::bad_alloc();
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(count)};
}

}  // namespace cleave
