// Checks error messages: what is wrong and where, a hint, the right exit code, and no internals of
// the program.
#pragma once

#include <string>
#include <vector>

#include "tests/daemon/daemons.h"

namespace cleave::test {

inline constexpr int kFailedRun = 1;
inline constexpr int kWrongUse = 2;

// Fails the test unless the program exited with `code` and stderr has every text of `says`, such as
// sentence, location and hint.
void checkError(const Ended& ended, int code, const std::vector<std::string>& says);

struct Mistake {
  std::string name;
  std::vector<std::string> arguments;  // appended to the arguments that all rows of a table share
  int code;
  std::vector<std::string> says;
};

// Makes every mistake of a table: runs `program` with the `shared` arguments and those of the row.
void checkMistakes(const Arguments& program, const std::vector<Mistake>& table);

}  // namespace cleave::test
