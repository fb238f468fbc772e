#include "common/core/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "common/core/durable.h"

namespace cleave {
namespace {

// Moves to the start of the row and erases it.
constexpr const char* kErase = "\r\x1b[K";

constexpr std::size_t kLogIndent = 4;  // indentation of a log line's continuation

// A lost terminal must not end a training run.
void writeQuietly(int descriptor, const std::string& text) { writeAll(descriptor, text); }

}  // namespace

bool hasControllingTerminal() {
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (terminal >= 0) ::close(terminal);
  return terminal >= 0;
}

bool isLiveTerminal(int descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

std::size_t terminalColumns(int descriptor) {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent) {
  if (columns <= indent) return text;
  std::string out;
  std::size_t column = 0;      // characters in the row so far
  std::size_t blank = 0;       // index in `out` of the row's last space between words; 0: none
  std::size_t afterBlank = 0;  // characters since then
  bool isEscape = false, isText = false;  // isText: a word has begun in this row
  for (const char c : text) {
    out += c;
    if (c == '\n') {
      column = blank = afterBlank = 0;
      isText = false;
      continue;
    }
    if (c == '\x1b') isEscape = true;
    // Whether c is a UTF-8 continuation byte.
    const bool isContinuation = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
    if (!isEscape && !isContinuation) {
      ++column;
      ++afterBlank;
      if (c != ' ') {
        isText = true;
      } else if (isText) {
        blank = out.size() - 1;
        afterBlank = 0;
      }
    }
    if (isEscape && c == 'm') isEscape = false;
    if (column <= columns || blank == 0) continue;
    out.replace(blank, 1, "\n" + std::string(indent, ' '));
    column = indent + afterBlank;
    blank = 0;
  }
  return out;
}

std::string wrappedFor(int descriptor, const std::string& text, std::size_t indent) {
  return isLiveTerminal(descriptor) ? wrapped(text, terminalColumns(descriptor), indent) : text;
}

bool wantsColor(int descriptor) {
  const char* refused = std::getenv("NO_COLOR");
  return isLiveTerminal(descriptor) && (refused == nullptr || *refused == '\0');
}

StatusLine& StatusLine::instance() {
  static StatusLine line;
  return line;
}

void StatusLine::show(int descriptor, const std::string& text) {
  const std::lock_guard lock(mutex_);
  writeQuietly(descriptor, kErase + text);
  descriptor_ = descriptor;
  shown_ = text;
}

void StatusLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!shown_.empty()) writeQuietly(descriptor_, kErase);
  shown_.clear();
}

void StatusLine::writeAbove(int descriptor, const std::string& lines) {
  const std::lock_guard lock(mutex_);
  const bool isAbove = !shown_.empty() && isLiveTerminal(descriptor);
  const std::string rows = wrappedFor(descriptor, lines, kLogIndent);
  writeQuietly(descriptor, isAbove ? kErase + rows + shown_ : rows);
}

}  // namespace cleave
