// Compares the errors that calls throw.
#pragma once

#include <string>

#include "common/core/error.h"

namespace cleave {

// The code of the Error that `call` throws; empty if it throws none.
template <typename Call>
std::string errorCode(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return {};
}

// The message of the Error that `call` throws; empty if it throws none.
template <typename Call>
std::string errorText(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The hint of the Error that `call` throws; empty if it throws none.
template <typename Call>
std::string errorHint(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.hint();
  }
  return {};
}

}  // namespace cleave
