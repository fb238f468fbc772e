// A program of ours that a command runs beside itself.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cleave {

// The path of "cleave-server" and the like in the folder of this program. Throws RunError
// "no-child" where it is not there, or may not be run.
std::string programBeside(const std::string& name);

class Child {
 public:
  struct Output {
    // Descriptors that it writes to, which stay the caller's; -1: where we write.
    int standard = -1;
    int errors = -1;
  };
  // Starts argv[0], a path, in a process group of its own, so that Ctrl-C reaches it through us
  // alone. It is told to end (SIGTERM) when the thread that started it is gone. Throws RunError.
  Child(std::vector<std::string> argv, const Output& output);
  // Ends it as end() does, with SIGTERM.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its exit code, or 128 + the signal that killed it; nothing while it runs.
  std::optional<int> ended();
  void signal(int number) const;
  // Sends the signal, and SIGKILL where it has not ended within 10 s. Returns what ended() does.
  int end(int number);

 private:
  pid_t process_ = -1;
  std::optional<int> code_;
};

// A child that says where it listens, in the first line that it writes.
class ListeningChild {
 public:
  // Starts argv[0], and waits until it listens. `errors`: as Child::Output's. Throws RunError.
  ListeningChild(const std::vector<std::string>& argv, int errors);
  // On loopback.
  const std::string& port() const { return port_; }

 private:
  std::optional<Child> child_;
  std::string port_;
};

}  // namespace cleave
