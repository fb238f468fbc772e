// Runs another Cleave program as a child process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/core/endpoint.h"

namespace cleave {

// The path of "cleave-server" or another program in this program's folder. Throws RunError
// "no-child" if it is missing or not executable.
std::string programBeside(const std::string& name);

class Child {
 public:
  struct Output {
    // File descriptors for the child's stdout and stderr, owned by the caller; -1: inherit this
    // process's descriptor.
    int standard = -1;
    int errors = -1;
  };
  // Starts the program argv[0], a path. The child has its own process group, so a terminal's Ctrl-C
  // does not reach it directly. It receives SIGTERM when the thread that started it exits. Throws
  // RunError.
  Child(std::vector<std::string> argv, const Output& output);
  // Calls end(SIGTERM).
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The child's exit code, or 128 + the number of the signal that killed it; empty while the child
  // runs.
  std::optional<int> ended();
  void signal(int number) const;
  // Sends the signal `number`, then SIGKILL if the child has not exited within 10 s. Returns the
  // exit code in the form that ended() uses.
  int end(int number);

 private:
  pid_t process_ = -1;
  std::optional<int> code_;
};

// A child that prints the address it listens on as its first line.
class ListeningChild {
 public:
  // Starts argv[0] and waits until it listens. `errors`: see Child::Output. Throws RunError.
  ListeningChild(const std::vector<std::string>& argv, int errors);
  // The loopback address on which the child listens.
  const Endpoint& address() const { return address_; }
  std::optional<int> ended() { return child_->ended(); }

 private:
  std::optional<Child> child_;
  Endpoint address_{"127.0.0.1", 0};
};

}  // namespace cleave
