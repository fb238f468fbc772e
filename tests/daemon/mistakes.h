// Checks error messages: they state what is wrong and where, have a hint and the right exit code,
// and show no internals of the program.
#pragma once

#include <string>
#include <vector>

#include "tests/daemon/daemons.h"

namespace cleave::test {

inline constexpr int kFailedRun = 1;
inline constexpr int kWrongUse = 2;

// Fails the test unless the program exited with `code` and stderr contains every text in `says`,
// such as the sentence, the location and the hint.
void checkError(const Ended& ended, int code, const std::vector<std::string>& says);

struct Mistake {
  std::string name;
  std::vector<std::string> arguments;  // appended to the `shared` arguments of checkMistakes()
  int code;
  std::vector<std::string> says;
};

// Makes every mistake in a table: runs `program` with the `shared` arguments and the row's own
// arguments.
void checkMistakes(const Arguments& program, const std::vector<Mistake>& table);

}  // namespace cleave::test
