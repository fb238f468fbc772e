// A program on a terminal, its output, and the resulting screen.
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
  // overrides variables of this process.
  TerminalProcess(const std::vector<std::string>& argv, std::uint16_t columns,
                  const std::map<std::string, std::string>& environment);
  ~TerminalProcess();  // kills the process
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  std::string output() const;
  bool waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const;
  void resize(std::uint16_t columns);
  void signal(int number) const;
  // Closes the terminal, like closing a terminal window. No output follows.
  void hangUp();
  // The program's exit code, or 128 + the signal that killed it; empty on timeout.
  std::optional<int> wait(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The rows on a terminal of `columns` columns after printing `output`. A row that wraps becomes two
// rows. Supports "\r", "\n", erasing to the end of the row, clearing the screen, and colours.
std::vector<std::string> screenAfter(const std::string& output, std::size_t columns);

}  // namespace cleave::test
