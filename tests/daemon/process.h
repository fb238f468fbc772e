// A process under test. This class captures the output, sends signals, waits for the exit, and
// always ends the process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cleave::test {

class Process {
 public:
  // Starts argv[0], a path, with this process's environment, overridden by `environment`; forks it
  // instead if it is a program of Cleave (program_forks.h). Standard input is empty, and no open
  // files are inherited. Throws std::system_error if the program cannot be started. The process is
  // killed when the thread that started it, or the main thread if it is forked, ends for any
  // reason.
  static Process start(const std::vector<std::string>& argv,
                       const std::map<std::string, std::string>& environment = {});
  Process(Process&&) noexcept;
  ~Process();  // kills the whole process group and reaps the process

  pid_t pid() const;
  // The output so far.
  std::string output() const;
  std::string errors() const;
  // Waits until output() or errors() contains `text`. Returns false on timeout, or if both streams
  // ended without it.
  bool waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const;
  void signal(int number);
  // Waits until the process has exited and all of its output is read. Returns the exit code, or 128
  // + the signal that killed the process; empty on timeout.
  std::optional<int> wait(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  explicit Process(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cleave::test
