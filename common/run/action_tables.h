// The stage function that each action calls: the only difference between client and server.
#pragma once

#include <functional>

#include "common/engine/worker.h"
#include "common/model/stage.h"

namespace cleave {

// How a body's run makes and restores checkpoints. Empty functions: it makes none.
struct CheckpointActions {
  // Copies the stage's state after this step.
  std::function<void(const StepDecision& decision)> snapshot;
  // Puts the state of the checkpoint in place.
  std::function<EngineState(const Resume& resume)> restore;
};

// The stage is borrowed. `threads`: the number the run computes with. If `weightsMayBeFetched` is
// false, a Fetch of the weights throws ProtocolError "fetch-not-allowed".
ActionTable bodyActions(BodyStage& stage, int threads, bool weightsMayBeFetched,
                        const CheckpointActions& checkpoints = {});

// `decide` makes a step's decision from BodyDone and the stage's own reports.
ActionTable clientActions(ClientStage& stage, int threads,
                          std::function<StepDecision(const BodyDone& done)> decide);

}  // namespace cleave
