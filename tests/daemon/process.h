// A real process under test: started, listened to, signalled, waited for, and never left behind.
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
  // Starts argv[0], a path, with this process's environment and `environment` over it; standard
  // input is empty, and no other file of this process is open there. Throws std::system_error where
  // it cannot be started. The process is killed when the thread that started it ends, in whatever
  // way.
  static Process start(const std::vector<std::string>& argv,
                       const std::map<std::string, std::string>& environment = {});
  Process(Process&&) noexcept;
  ~Process();  // kills it with all of its process group, and reaps it

  pid_t pid() const;
  // What it has written so far.
  std::string output() const;
  std::string errors() const;
  // Waits until `text` stands in output() or errors(). False: the time is over, or both ended
  // without it.
  bool waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const;
  void signal(int number);
  // Waits until the process has ended and all it wrote is read: its exit code, or 128 + the signal
  // that killed it. Nothing: the time is over.
  std::optional<int> wait(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  explicit Process(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cleave::test
