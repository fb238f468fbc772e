// What every error must be: a sentence that says what is wrong and where, a way to mend it, the
// right exit code, and no trace of the program's inside.
#pragma once

#include <string>
#include <vector>

#include "tests/daemon/daemons.h"

namespace cleave::test {

inline constexpr int kFailedRun = 1;
inline constexpr int kWrongUse = 2;

// Fails the test unless a program ended with `code` and wrote every text of `says`, of which
// sentence, place and hint are some, on stderr.
void checkError(const Ended& ended, int code, const std::vector<std::string>& says);

struct Mistake {
  std::string name;
  std::vector<std::string> arguments;  // behind those that all rows of a table share
  int code;
  std::vector<std::string> says;
};

// Makes every mistake of a table: runs `program` with `shared` arguments and the row's.
void checkMistakes(const Arguments& program, const std::vector<Mistake>& table);

}  // namespace cleave::test
