// Runs cases as a server runs them: in a confined process of its own.
#pragma once

#include <string>

#include "stage/stage_processes.h"
#include "tests/operators/cases.h"

namespace cleave::test {

// How a case ends in a stage's process: "" with a result, or the code of its error. `fault` is set
// if its process has crashed, or the error is not one that a client can understand.
struct StageOutcome {
  std::string code;
  std::string fault;
};

// Sends the case as a run's graph: forward and, in training, backward.
StageOutcome runInStage(StageProcesses& processes, const OperatorCase& given);

}  // namespace cleave::test
