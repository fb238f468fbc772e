// Which function of a stage each action calls: all that client and server differ in.
#pragma once

#include <functional>

#include "common/model/stage.h"
#include "common/pipeline/worker.h"

namespace cleave {

// The stage is borrowed. `threads`: what the run computes with. Where the weights may not be
// fetched, a Fetch of them throws ProtocolError "fetch-not-allowed".
ActionTable bodyActions(BodyStage& stage, int threads, bool weightsMayBeFetched);

// `decide` makes a step's decision, from what BodyDone says and the stage's own reports.
ActionTable clientActions(ClientStage& stage, int threads,
                          std::function<StepDecision(const BodyDone& done)> decide);

}  // namespace cleave
