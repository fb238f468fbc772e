#include "client/data/files/cells.h"

#include <algorithm>
#include <array>

namespace cleave {
namespace {

constexpr std::array<std::string_view, 7> kBlanks = {
    " ", "\t", "\r", "\xC2\xA0", "\xE2\x80\x87", "\xE2\x80\x89", "\xE2\x80\xAF"};

}  // namespace

std::size_t blankLength(std::string_view text) {
  for (const std::string_view blank : kBlanks) {
    if (text.starts_with(blank)) return blank.size();
  }
  return 0;
}

std::string_view trimmed(std::string_view text) {
  while (const std::size_t length = blankLength(text)) text.remove_prefix(length);
  return trimmedEnd(text);
}

std::string_view trimmedEnd(std::string_view text) {
  const auto endLength = [&] {
    for (const std::string_view blank : kBlanks) {
      if (text.ends_with(blank)) return blank.size();
    }
    return std::size_t{0};
  };
  while (const std::size_t length = endLength()) text.remove_suffix(length);
  return text;
}

std::string lowerCase(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return text;
}

bool isMissing(std::string_view cell) {
  cell = trimmed(cell);
  constexpr std::size_t kLongest = 4;
  if (cell.empty()) return true;
  if (cell.size() > kLongest) return false;
  const std::string lower = lowerCase(std::string(cell));
  constexpr std::array<std::string_view, 9> kMissing = {"nan", "-nan", "na",   "n/a", "#n/a",
                                                        "#na", "<na>", "null", "none"};
  return std::find(kMissing.begin(), kMissing.end(), lower) != kMissing.end();
}

}  // namespace cleave
