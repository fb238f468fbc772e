#include "common/run/action_tables.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/run/torch_errors.h"

namespace cleave {
namespace {

ActionFunction& at(ActionTable& table, ActionKind kind) {
  return table[static_cast<std::size_t>(kind)];
}

// Runs of several clients share the device thread. Each run keeps its thread count, because results
// with another one are not bit-identical.
void computeWith(ActionTable& table, int threads) {
  for (ActionFunction& function : table) {
    if (!function) continue;
    function = [threads, inner = std::move(function)](Work work) {
      setComputeThreads(threads);
      return withTorchErrors([&] { return inner(std::move(work)); });
    };
  }
}

void limitMemory(ActionFunction& function, std::shared_ptr<const MemoryLimit> memory) {
  function = [memory = std::move(memory), inner = std::move(function)](Work work) {
    const MemoryLimit::Scope scope(*memory);
    return inner(std::move(work));
  };
}

}  // namespace

ActionTable bodyActions(BodyStage& stage, int threads, bool weightsMayBeFetched,
                        const CheckpointActions& checkpoints,
                        std::shared_ptr<const MemoryLimit> memory) {
  ActionTable table;
  at(table, ActionKind::bodyForward) = [&stage](Work work) -> Result {
    return stage.forward(work.at, std::move(work.tensors()));
  };
  at(table, ActionKind::bodyBackward) = [&stage](Work work) -> Result {
    return stage.backward(work.at, std::move(work.tensors()));
  };
  at(table, ActionKind::bodyWeights) = [&stage](Work work) -> Result {
    stage.backwardWeights(work.at);
    return std::monostate{};
  };
  if (memory) {
    limitMemory(at(table, ActionKind::bodyForward), memory);
    limitMemory(at(table, ActionKind::bodyBackward), memory);
    limitMemory(at(table, ActionKind::bodyWeights), memory);
  }
  at(table, ActionKind::report) = [&stage](Work work) -> Result {
    return stage.report(work.at.step);
  };
  at(table, ActionKind::update) = [&stage](Work work) -> Result {
    stage.update(std::get<StepDecision>(work.input));
    return std::monostate{};
  };
  at(table, ActionKind::exportBlob) = [&stage, weightsMayBeFetched](Work work) -> Result {
    const bool ofWeights = std::get<Flow>(work.input) == kWeightsBody;
    if (!weightsMayBeFetched && ofWeights) {
      throw ProtocolError("fetch-not-allowed",
                          "this server does not allow clients to fetch weights");
    }
    return std::make_shared<const std::vector<std::byte>>(ofWeights ? stage.exportWeights()
                                                                    : stage.exportGradients());
  };
  at(table, ActionKind::importBlob) = [&stage](Work work) -> Result {
    stage.importWeights(std::get<Blob>(work.input).bytes);
    return std::monostate{};
  };
  at(table, ActionKind::snapshot) = [save = checkpoints.snapshot](Work work) -> Result {
    if (save) save(std::get<StepDecision>(work.input));
    return std::monostate{};
  };
  if (checkpoints.restore) {
    at(table, ActionKind::restore) = [restore = checkpoints.restore](Work work) -> Result {
      return restore(std::get<Resume>(work.input));
    };
  }
  computeWith(table, threads);
  return table;
}

ActionTable clientActions(ClientStage& stage, int threads, DecideFunction decide) {
  ActionTable table;
  at(table, ActionKind::headForward) = [&stage](Work work) -> Result {
    return stage.headForward(work.at);
  };
  at(table, ActionKind::tailStep) = [&stage](Work work) -> Result {
    return stage.tailStep(work.at, std::move(work.tensors()));
  };
  at(table, ActionKind::headBackward) = [&stage](Work work) -> Result {
    stage.headBackward(work.at, std::move(work.tensors()));
    return std::monostate{};
  };
  at(table, ActionKind::decide) = [decide = std::move(decide)](Work work) -> Result {
    return decide(std::get<std::vector<BodyDone>>(work.input));
  };
  at(table, ActionKind::update) = [&stage](Work work) -> Result {
    stage.update(std::get<StepDecision>(work.input));
    return std::monostate{};
  };
  computeWith(table, threads);
  return table;
}

}  // namespace cleave
