// How a file of data is refused.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "common/core/error.h"

namespace cleave::test {

// open() fails with `code`, a sentence that names the file and says `fault`, and advice.
template <typename Open>
void checkRefused(Open open, const std::string& file, const std::string& code,
                  const std::string& fault) {
  CAPTURE(fault);
  try {
    open();
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.code() == code);
    CHECK_THAT(error.what(), Catch::StartsWith(file + " ") && Catch::Contains(fault));
    CHECK_FALSE(error.hint().empty());
  }
}

}  // namespace cleave::test
