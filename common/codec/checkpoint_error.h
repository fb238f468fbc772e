// The error for a saved state that does not match the object it is restored into.
#pragma once

#include <string>

#include "common/core/error.h"

namespace cleave {

// Returns a "bad-checkpoint" error, with the hint to use the configuration and version of the run
// that saved it.
RunError badCheckpoint(const std::string& sentence);

}  // namespace cleave
