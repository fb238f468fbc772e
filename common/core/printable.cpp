#include "common/core/printable.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>

namespace cleave {
namespace {

constexpr std::string_view kCut = "…";

struct CodePoints {
  char32_t first, last;
};
// Unprintable code points beyond ASCII, sorted: those in Unicode 15's categories Cc, Cf, Zl and Zp
// that act on a terminal or are invisible.
constexpr CodePoints kUnprintable[] = {
    {0x7F, 0x9F},        // DEL, C1: CSI, OSC and others as one character
    {0x61C, 0x61C},      // Arabic letter mark
    {0x200B, 0x200F},    // zero width, direction marks
    {0x2028, 0x202E},    // line and paragraph separators, direction overrides
    {0x2060, 0x206F},    // word joiner, direction isolates, deprecated format characters
    {0xFEFF, 0xFEFF},    // zero width no-break space
    {0xFFF9, 0xFFFB},    // annotations
    {0xE0000, 0xE007F},  // tags
};

bool isUnprintable(char32_t c) {
  return std::any_of(std::begin(kUnprintable), std::end(kUnprintable),
                     [c](const CodePoints& range) { return range.first <= c && c <= range.last; });
}

// The UTF-8 character that begins at `at`: its length in bytes and its code point; 0 bytes if no
// valid one begins there. RFC 3629: shortest form, no surrogates, at most U+10FFFF.
struct Decoded {
  std::size_t bytes = 0;
  char32_t codePoint = 0;
};
Decoded decodeAt(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t j) { return static_cast<std::uint8_t>(text[at + j]); };
  const std::uint8_t lead = byte(0);
  const std::size_t bytes = lead < 0x80             ? 1
                            : (lead & 0xE0) == 0xC0 ? 2
                            : (lead & 0xF0) == 0xE0 ? 3
                            : (lead & 0xF8) == 0xF0 ? 4
                                                    : 0;
  if (bytes == 0 || bytes > text.size() - at) return {};
  if (bytes == 1) return {1, lead};
  char32_t codePoint = lead & (0x7F >> bytes);
  for (std::size_t j = 1; j < bytes; ++j) {
    if ((byte(j) & 0xC0) != 0x80) return {};
    codePoint = codePoint << 6 | (byte(j) & 0x3F);
  }
  constexpr char32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool isSurrogate = codePoint >= 0xD800 && codePoint <= 0xDFFF;
  if (codePoint < kMin[bytes] || codePoint > 0x10FFFF || isSurrogate) return {};
  return {bytes, codePoint};
}

bool isEscaped(const Decoded& character) {
  const char32_t c = character.codePoint;
  return (c < ' ' && c != '\n' && c != '\t') || isUnprintable(c);
}

void appendEscape(std::string& text, char32_t c) {
  const auto append = [&](char32_t unit) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[unit >> shift & 0xF];
  };
  if (c < 0x10000) return append(c);
  append(0xD800 + ((c - 0x10000) >> 10));
  append(0xDC00 + ((c - 0x10000) & 0x3FF));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Decoded character = decodeAt(text, at);
    if (character.bytes == 0) {
      result += '?';
    } else if (isEscaped(character)) {
      appendEscape(result, character.codePoint);
    } else {
      result += text.substr(at, character.bytes);
    }
    at += std::max<std::size_t>(character.bytes, 1);
  }
  return result;
}

// ---- EscapedOutput ----

EscapedOutput::EscapedOutput(std::ostream& stream) : stream_(stream), target_(stream.rdbuf(this)) {}

EscapedOutput::~EscapedOutput() {
  sync();
  stream_.rdbuf(target_);
}

std::streamsize EscapedOutput::xsputn(const char* text, std::streamsize count) {
  begun_.append(text, static_cast<std::size_t>(count));
  // A character may be continued by the next write.
  std::size_t end = begun_.size();
  const std::size_t first = end - std::min<std::size_t>(end, 3);
  for (std::size_t at = end; at-- > first;) {
    const auto byte = static_cast<std::uint8_t>(begun_[at]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t bytes = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (at + bytes > end) end = at;
    break;
  }
  const std::string rest = begun_.substr(end);
  begun_.resize(end);
  const bool isWritten = write(begun_);
  begun_ = rest;
  return isWritten ? count : 0;
}

EscapedOutput::int_type EscapedOutput::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof()))
    return traits_type::not_eof(character);
  const char c = traits_type::to_char_type(character);
  return xsputn(&c, 1) == 1 ? character : traits_type::eof();
}

int EscapedOutput::sync() {
  const bool isWritten = write(begun_);
  begun_.clear();
  return isWritten && target_->pubsync() == 0 ? 0 : -1;
}

bool EscapedOutput::write(std::string_view text) {
  isUsed_ = isUsed_ || !text.empty();
  const std::string shown = escaped(text);
  const auto size = static_cast<std::streamsize>(shown.size());
  return target_->sputn(shown.data(), size) == size;
}

std::string printable(std::string_view text, std::size_t maxBytes) {
  std::string result;
  std::size_t cutAt = 0;  // the last position at which "…" still fits
  for (std::size_t at = 0; at < text.size();) {
    const auto [bytes, codePoint] = decodeAt(text, at);
    std::string_view shown = text.substr(at, bytes);
    if (bytes == 1 && (codePoint == '\n' || codePoint == '\r' || codePoint == '\t')) {
      shown = " ";
    } else if (bytes == 0 || codePoint < ' ' || isUnprintable(codePoint)) {
      shown = "?";
    }
    if (result.size() + shown.size() > maxBytes) {
      result.resize(cutAt);
      return result.append(kCut);
    }
    result += shown;
    if (result.size() + kCut.size() <= maxBytes) cutAt = result.size();
    at += std::max<std::size_t>(bytes, 1);
  }
  return result;
}

std::string shellQuoted(const std::string& text) {
  const bool isPlain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (isPlain && !text.empty() && !text.starts_with('-')) return text;
  std::string quoted = text.starts_with('-') ? "./'" : "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += R"('\'')";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace cleave
