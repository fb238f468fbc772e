// Processes that do what a test wants, in place of stages' processes.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "common/core/clock.h"
#include "stage/stage_processes.h"

namespace cleave::test {

using Play = std::function<void(int socket, std::span<std::byte> output)>;

inline StageWatch& watch() {
  static StageWatch all;
  return all;
}

inline std::unique_ptr<StageProcess> playing(std::span<std::byte> output, const Play& play,
                                             std::function<void()> returnMemory = {}) {
  std::array<int, 2> ends{}, pipe{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::dup2(pipe[1], 2);
    play(ends[1], output);
    ::_exit(0);
  }
  ::close(ends[1]);
  ::close(pipe[1]);
  auto process = std::make_shared<WatchedProcess>(
      child, OpenFile(static_cast<int>(::syscall(SYS_pidfd_open, child, 0))),
      [child] {
        int status = 0;
        ::waitpid(child, &status, 0);
        return status;
      },
      std::move(returnMemory));
  return std::make_unique<StageProcess>(watch(), std::move(process), OpenFile(ends[0]),
                                        OpenFile(pipe[0]));
}

// Whether it becomes true, in a time that is long enough for a busy machine.
template <typename Condition>
bool soon(const Condition& condition) {
  for (const auto begin = now(); secondsSince(begin) < 60;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace cleave::test
