// Starts cleave-client and cleave-server in tests by forking a process that has already loaded
// LibTorch, because loading takes longer than most of their runs in tests.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::test {

// What the process with the loaded programs (forked_programs.cpp) is asked for. The arguments and
// the environment follow, each string with its terminating zero.
struct ForkOrder {
  std::uint64_t bytes = 0;      // of these strings
  std::uint64_t arguments = 0;  // their number; the others are the environment
};

// The null-terminated array that a program takes as its arguments or environment; points into
// `strings`.
inline std::vector<char*> pointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts a program as a child of this process, in a process group of its own, with empty standard
// input. Empty if `arguments` do not start with a program that can be forked. The child is killed
// if this process ends. Throws std::runtime_error on a failure.
std::optional<pid_t> forkProgram(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment, int output,
                                 int errors);

}  // namespace cleave::test
