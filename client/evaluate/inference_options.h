// The options of the commands that use a trained model.
#pragma once

#include <string>

#include "client/config/run_options.h"

namespace cleave {

struct InferenceOptions {
  RunOptions run;      // if run.server is empty, all layers run in this process
  std::string source;  // the folder of a run, or a model file
  bool best = false;   // uses the model that keep.best has saved
};

}  // namespace cleave
