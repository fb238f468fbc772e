// Checks that something is refused, with a hint.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "common/core/error.h"

namespace cleave::test {

// Checks that open() fails with `code`, a hint, and a sentence that contains the file's name and
// `fault`.
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

// Returns the error sentence of a call. Checks that the error has a hint.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    CHECK_FALSE(error.hint().empty());
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace cleave::test
