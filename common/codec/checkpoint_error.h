// The error for a saved state that does not match the object it is restored into.
#pragma once

#include <string>

#include "common/core/error.h"

namespace cleave {

// "bad-checkpoint", with the hint to use the configuration and version of the run that saved it.
RunError badCheckpoint(const std::string& sentence);

}  // namespace cleave
