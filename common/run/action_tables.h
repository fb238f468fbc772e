// Assigns a stage's functions to the engine's actions.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/engine/worker.h"
#include "common/model/stage/stage.h"

namespace cleave {

// How a body's run makes and restores checkpoints. If the functions are empty, it makes none.
struct CheckpointActions {
  // Copies the stage's state after this step.
  std::function<void(const StepDecision& decision)> snapshot;
  // Puts the state of the checkpoint in place.
  std::function<EngineState(const Resume& resume)> restore;
};

// Adds the replicas' shares of a step: see GradientReducer::reduce().
using ReduceFunction = std::function<void(std::uint64_t step, std::span<float> share,
                                          std::function<void(std::exception_ptr error)> done)>;

// The stage is borrowed. `threads`: the run's number of compute threads. If `weightsMayBeFetched`
// is false, a Fetch of the weights throws ProtocolError "fetch-not-allowed". `reduce`: empty
// without replicas.
ActionTable bodyActions(Body& stage, int threads, bool weightsMayBeFetched,
                        const CheckpointActions& checkpoints = {}, ReduceFunction reduce = nullptr);

// Decides a step. `bodies`: the reports of all bodies, in the order of the model.
using DecideFunction = std::function<StepDecision(const std::vector<BodyDone>& bodies)>;
ActionTable clientActions(ClientStage& stage, int threads, DecideFunction decide);

}  // namespace cleave
