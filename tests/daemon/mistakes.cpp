#include "tests/daemon/mistakes.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace cleave::test {

using Catch::Matchers::Contains;

void checkError(const Ended& ended, int code, const std::vector<std::string>& says) {
  INFO(ended.errors);
  CHECK(ended.code == code);
  for (const std::string& text : says) CHECK_THAT(ended.errors, Contains(text));
  const std::size_t hint = ended.errors.find(": hint: ");
  CHECK(hint != std::string::npos);
  CHECK(
      (hint == std::string::npos || ended.errors.find(": hint: ", hint + 1) == std::string::npos));
  for (const char* inside : {"internal error", "terminate called", "what():", "std::"}) {
    CHECK_THAT(ended.errors, !Contains(inside));
  }
}

void checkMistakes(const Arguments& program, const std::vector<Mistake>& table) {
  constexpr std::size_t kAtOnce = 4;
  for (std::size_t first = 0; first < table.size(); first += kAtOnce) {
    const std::size_t last = std::min(first + kAtOnce, table.size());
    std::vector<Process> processes;
    for (std::size_t row = first; row < last; ++row) {
      Arguments arguments = program;
      arguments.insert(arguments.end(), table[row].arguments.begin(), table[row].arguments.end());
      processes.push_back(Process::start(arguments));
    }
    for (std::size_t row = first; row < last; ++row) {
      INFO(table[row].name);
      checkError(finish(processes[row - first]), table[row].code, table[row].says);
    }
  }
}

}  // namespace cleave::test
