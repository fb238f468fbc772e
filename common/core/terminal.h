// What a program shows on a terminal: one line at the bottom that rewrites itself, and whatever is
// written above it. All of it goes through here, so that neither tears the other.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

namespace cleave {

// Whether this process has a terminal that can hang up: one of its own session. A service has none.
bool hasControllingTerminal();
// Whether a person looks at it, and a line there can be written anew: a terminal, and TERM is not
// "dumb".
bool isLiveTerminal(int descriptor);
// Columns at this moment; 80 where the terminal does not say.
std::size_t terminalColumns(int descriptor);
// `text` with line breaks instead of blanks, so that no line has more than `columns` (0: no limit);
// what is continued begins with `indent` blanks. A word that is longer stays whole. Colours take no
// room.
std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent);
// The same for what is written to `descriptor`: as it is unless that is a live terminal.
std::string wrappedFor(int descriptor, const std::string& text, std::size_t indent);
// Whether to colour what is written there: a live terminal, and no NO_COLOR (no-color.org).
bool wantsColor(int descriptor);

// One for the process, since a terminal has one bottom. Any thread.
class StatusLine {
 public:
  static StatusLine& instance();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Puts `text`, which is to fit into a row, in place of what is shown, with one write.
  // `descriptor` is a live terminal.
  void show(int descriptor, const std::string& text);
  void clear();
  // Writes `lines`, whole ones, with one write; above the line, where both are on a terminal. There
  // they are wrapped.
  void writeAbove(int descriptor, const std::string& lines);

 private:
  StatusLine() = default;

  std::mutex mutex_;
  int descriptor_ = -1;
  std::string shown_;  // empty: nothing
};

}  // namespace cleave
