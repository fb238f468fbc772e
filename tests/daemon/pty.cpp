#include "tests/daemon/pty.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace cleave::test {

struct TerminalProcess::State {
  pid_t pid = -1;
  int terminal = -1;
  std::array<int, 2> stopReading{-1, -1};  // a pipe; writing a byte to it closes the terminal
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::string output;
  std::optional<int> exitCode;
  std::thread reader;
};

TerminalProcess::TerminalProcess(const std::vector<std::string>& argv, std::uint16_t columns,
                                 const std::map<std::string, std::string>& environment)
    : state_(std::make_unique<State>()) {
  std::vector<std::string> arguments = argv;
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const winsize size{24, columns, 0, 0};
  state_->pid = ::forkpty(&state_->terminal, nullptr, nullptr, &size);
  if (state_->pid < 0) throw std::system_error(errno, std::generic_category(), "forkpty");
  if (state_->pid == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  // Otherwise programs started in the meantime would keep the terminal open.
  ::fcntl(state_->terminal, F_SETFD, FD_CLOEXEC);
  if (::pipe2(state_->stopReading.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  state_->reader = std::thread([state = state_.get()] {
    std::array<char, 4096> bytes;
    std::array<pollfd, 2> ready{{{state->terminal, POLLIN, 0}, {state->stopReading[0], POLLIN, 0}}};
    while (::poll(ready.data(), ready.size(), -1) > 0 || errno == EINTR) {
      if (ready[1].revents != 0) {
        ::close(std::exchange(state->terminal, -1));
        break;
      }
      const ssize_t got = ::read(state->terminal, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      const std::lock_guard lock(state->mutex);
      state->output.append(bytes.data(), static_cast<std::size_t>(got));
      state->changed.notify_all();
    }
    // The terminal has ended because the program exited or closed it, or because hangUp() was
    // called.
    int status = 0;
    ::waitpid(state->pid, &status, 0);
    const std::lock_guard lock(state->mutex);
    state->exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    state->changed.notify_all();
  });
}

TerminalProcess::~TerminalProcess() {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->exitCode) ::kill(state_->pid, SIGKILL);
  }
  state_->reader.join();
  if (state_->terminal >= 0) ::close(state_->terminal);
  for (const int end : state_->stopReading) ::close(end);
}

std::string TerminalProcess::output() const {
  const std::lock_guard lock(state_->mutex);
  return state_->output;
}

bool TerminalProcess::waitForOutput(const std::string& text,
                                    std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  const auto found = [&] { return state_->output.find(text) != std::string::npos; };
  state_->changed.wait_for(lock, timeout, [&] { return found() || state_->exitCode; });
  return found();
}

void TerminalProcess::resize(std::uint16_t columns) {
  const winsize size{24, columns, 0, 0};
  ::ioctl(state_->terminal, TIOCSWINSZ, &size);
}

void TerminalProcess::signal(int number) const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->exitCode) ::kill(state_->pid, number);
}

void TerminalProcess::hangUp() {
  const char stop = 0;
  if (::write(state_->stopReading[1], &stop, 1) != 1) {
    throw std::system_error(errno, std::generic_category(), "hang up");
  }
}

std::optional<int> TerminalProcess::wait(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, timeout, [&] { return state_->exitCode.has_value(); });
  return state_->exitCode;
}

std::vector<std::string> screenAfter(const std::string& output, std::size_t columns) {
  std::vector<std::string> rows(1);
  std::size_t column = 0;
  for (std::size_t j = 0; j < output.size(); ++j) {
    const char c = output[j];
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      rows.emplace_back();
    } else if (c == '\x1b' && j + 1 < output.size() && output[j + 1] == '[') {
      const std::size_t end = output.find_first_not_of("0123456789;", j + 2);
      if (end == std::string::npos) break;
      if (output[end] == 'K') rows.back().resize(std::min(rows.back().size(), column));
      if (output[end] == 'J') {
        rows.assign(1, "");
        column = 0;
      }
      j = end;
    } else {
      if (column == columns) {
        rows.emplace_back();
        column = 0;
      }
      if (rows.back().size() <= column) rows.back().resize(column + 1, ' ');
      rows.back()[column++] = c;
    }
  }
  return rows;
}

}  // namespace cleave::test
