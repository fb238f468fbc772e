#include "common/core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "common/core/durable.h"

namespace cleave {
namespace {

// To the row's begin, then away with what stands there.
constexpr const char* kErase = "\r\x1b[K";

// A terminal that is gone is no reason to end a training.
void writeQuietly(int descriptor, const std::string& text) { writeAll(descriptor, text); }

}  // namespace

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
  writeQuietly(descriptor, isAbove ? kErase + lines + shown_ : lines);
}

}  // namespace cleave
