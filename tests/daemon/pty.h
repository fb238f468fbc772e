// A program on a terminal: its output, and the resulting screen.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cleave::test {

class TerminalProcess {
 public:
  // Runs argv[0], a path, with stdin, stdout and stderr on a terminal of its own. `environment`
  // overrides this process's.
  TerminalProcess(const std::vector<std::string>& argv, std::uint16_t columns,
                  const std::map<std::string, std::string>& environment);
  ~TerminalProcess();  // kills it
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  std::string output() const;
  bool waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const;
  void resize(std::uint16_t columns);
  void signal(int number) const;
  // Closes the terminal, like closing its window. No output follows.
  void hangUp();
  // Its exit code, or 128 + the signal that killed it; empty on timeout.
  std::optional<int> wait(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The rows on a terminal of `columns` columns after `output`; a wrapped row counts as two. Supports
// "\r", "\n", erasing to the end of the row, clearing the screen, and colours.
std::vector<std::string> screenAfter(const std::string& output, std::size_t columns);

}  // namespace cleave::test
