// The error that ends a run which can be continued.
#pragma once

#include <string>
#include <utility>

#include "common/core/error.h"

namespace cleave {

class ResumableError : public RunError {
 public:
  // The same error with other texts. `hint`: may be empty; `command` continues the run after that.
  ResumableError(const Error& error, const std::string& sentence, std::string hint,
                 std::string command)
      : RunError(error, sentence, std::move(hint)), command_(std::move(command)) {}

  const std::string& command() const { return command_; }

 private:
  std::string command_;
};

}  // namespace cleave
