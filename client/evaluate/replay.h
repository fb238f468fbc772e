// Computes a run again with the whole model in this process, to check the model that it has saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/evaluate/comparison.h"

namespace cleave {

struct Replayed {
  std::string folder;  // of the run whose model was compared: the first one that is done
  std::uint64_t steps = 0;
  Comparison weights;  // of model.safetensors with those computed here
};

// `folders`: of a finished run; or, of a cohort, those of all members in their order, whose data
// this process then reads; members that were lost on the way have not finished theirs. The samples
// of each member are used in the steps in which it took part, as listed in summary.json. Throws
// UsageError "bad-replay" if the run cannot be computed again, or the errors of the configuration
// and the data.
Replayed replayRun(const std::vector<std::string>& folders);

}  // namespace cleave
