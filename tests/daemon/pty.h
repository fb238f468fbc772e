// A program on a terminal: what it writes there, and what a person sees of it.
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
  // Runs argv[0], a path, with all three of its standard files on a terminal of its own, with
  // `environment` over this process's.
  TerminalProcess(const std::vector<std::string>& argv, std::uint16_t columns,
                  const std::map<std::string, std::string>& environment);
  ~TerminalProcess();  // kills it
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  std::string output() const;
  bool waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const;
  void resize(std::uint16_t columns);
  void signal(int number) const;
  // Closes the terminal, as closing its window does. There is no output after this.
  void hangUp();
  // Its exit code once it has ended, or 128 + the signal that killed it. Nothing: the time is over.
  std::optional<int> wait(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What stands on a terminal of so many columns after `output`: rows that went on in the next for
// want of room count as two. Knows "\r", "\n", erasing to the row's end, clearing all, and colours.
std::vector<std::string> screenAfter(const std::string& output, std::size_t columns);

}  // namespace cleave::test
