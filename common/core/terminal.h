// Terminal output: one status line at the bottom that rewrites itself, and other output above it.
// All terminal output must use this file, so that the two do not overwrite each other.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

namespace cleave {

// Whether this process's session has a controlling terminal, which can hang up. A service has none.
bool hasControllingTerminal();
// Whether `descriptor` is a terminal on which a line can be rewritten: a TTY, and TERM is set and
// is not "dumb".
bool isLiveTerminal(int descriptor);
// The current number of columns; 80 if the terminal does not report it.
std::size_t terminalColumns(int descriptor);
// Wraps `text` at spaces so that no line exceeds `columns` (0: no limit); continuation lines are
// indented by `indent` spaces. Words longer than a line are not split. Colour sequences take no
// columns.
std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent);
// Wraps `text` to the terminal's width if `descriptor` is a live terminal; otherwise returns it
// unchanged.
std::string wrappedFor(int descriptor, const std::string& text, std::size_t indent);
// Whether to use colour: a live terminal, and NO_COLOR is not set (no-color.org).
bool wantsColor(int descriptor);

// A singleton, because a terminal has one bottom line. Any thread.
class StatusLine {
 public:
  static StatusLine& instance();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Replaces the shown text with `text`, which must fit into one row, in a single write.
  // `descriptor` must be a live terminal.
  void show(int descriptor, const std::string& text);
  void clear();
  // Writes `lines`, which must be whole, in a single write: above the status line if both are on a
  // terminal. On a terminal, the lines are wrapped.
  void writeAbove(int descriptor, const std::string& lines);

 private:
  StatusLine() = default;

  std::mutex mutex_;
  int descriptor_ = -1;
  std::string shown_;  // empty: nothing is shown
};

}  // namespace cleave
