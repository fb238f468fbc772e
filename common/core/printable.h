// Makes texts from peers and from files safe for terminals, logs and CSV files.
#pragma once

#include <cstddef>
#include <ostream>
#include <streambuf>
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

// The text without the characters that printable() replaces, but with all of its lines and its
// whole length: as escapes of JSON, such as \u001b, so that JSON keeps its meaning. Line breaks
// (\n) and tabs stay; bytes that are not UTF-8 become '?'.
std::string escaped(std::string_view text);

// The text as one word of a command for a POSIX shell, in quotes if necessary. A path that begins
// with a hyphen becomes ./-…, so that no program takes it for an option.
std::string shellQuoted(const std::string& text);

// While it exists, everything that is written to `stream` passes escaped(). The programs' output
// uses it, so that no command can forget a name that comes from a data file.
class EscapedOutput : private std::streambuf {
 public:
  explicit EscapedOutput(std::ostream& stream);
  ~EscapedOutput() override;
  EscapedOutput(const EscapedOutput&) = delete;
  EscapedOutput& operator=(const EscapedOutput&) = delete;

  bool isUsed() const { return isUsed_; }  // whether something has been written

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int_type overflow(int_type character) override;
  int sync() override;
  bool write(std::string_view text);

  std::ostream& stream_;
  std::streambuf* const target_;
  std::string begun_;  // the first bytes of a character
  bool isUsed_ = false;
};

}  // namespace cleave
