// Runs another Cleave program as a child process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cleave {

// The path of "cleave-server" or another program in this program's folder. Throws RunError
// "no-child" if it is missing or not executable.
std::string programBeside(const std::string& name);

class Child {
 public:
  struct Output {
    // File descriptors for stdout and stderr, owned by the caller; -1: inherit ours.
    int standard = -1;
    int errors = -1;
  };
  // Starts argv[0], a path, in its own process group, so that Ctrl-C reaches it only through us. It
  // receives SIGTERM when the thread that started it exits. Throws RunError.
  Child(std::vector<std::string> argv, const Output& output);
  // Calls end(SIGTERM).
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its exit code, or 128 + the signal that killed it; empty while it runs.
  std::optional<int> ended();
  void signal(int number) const;
  // Sends the signal, then SIGKILL if the child has not exited within 10 s. Returns the same value
  // as ended().
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
  // The port on loopback.
  const std::string& port() const { return port_; }

 private:
  std::optional<Child> child_;
  std::string port_;
};

}  // namespace cleave
