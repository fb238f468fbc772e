#include "common/run/action_tables.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cohort/member_part.h"
#include "common/device/torch_errors.h"

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

// Reduce starts with this step's share, Report takes the sum, and Update returns a digest of the
// weights. Steps are reduced one at a time.
void addReduction(ActionTable& table, Body& stage, int threads, ReduceFunction reduce) {
  // Owned by the pending call too, which may end after the table's life.
  const auto values = std::make_shared<std::vector<float>>();
  table.starts[indexOf(ActionKind::reduce)] = [&stage, threads, values, reduce = std::move(reduce)](
                                                  Work work, Done done) {
    setComputeThreads(threads);
    withTorchErrors([&] {
      values->resize(stage.shareSize());
      stage.writeShare(work.at.step, *values);
    });
    reduce(work.at.step, *values, [values, done = std::move(done)](std::exception_ptr error) {
      done(std::monostate{}, std::move(error));
    });
  };
  at(table, ActionKind::report) = [&stage, values](Work work) -> Result {
    stage.readSum(work.at.step, *values);
    return stage.report(work.at.step);
  };
  ActionFunction& update = at(table, ActionKind::update);
  update = [&stage, inner = std::move(update)](Work work) -> Result {
    inner(std::move(work));
    return stage.weightsDigest();
  };
}

}  // namespace

ActionTable bodyActions(Body& stage, int threads, bool weightsMayBeFetched,
                        const CheckpointActions& checkpoints, ReduceFunction reduce) {
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
  at(table, ActionKind::report) = [&stage](Work work) -> Result {
    return stage.report(work.at.step);
  };
  at(table, ActionKind::update) = [&stage](Work work) -> Result {
    stage.update(std::get<StepDecision>(work.input));
    return std::monostate{};
  };
  if (reduce) addReduction(table, stage, threads, std::move(reduce));
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
  // In a cohort.
  at(table, ActionKind::exportBlob) = [&stage](Work work) -> Result {
    MemberPart part{{}, stage.metrics(work.at.step)};
    if (work.at.phase == Phase::train) {
      part.values.resize(stage.shareSize());
      stage.writeShare(work.at.step, part.values);
    }
    return toBytes(part);
  };
  at(table, ActionKind::importBlob) = [&stage](Work work) -> Result {
    MemberPart sum = partFromBytes(std::get<Blob>(work.input).bytes);
    const std::size_t expected = work.at.phase == Phase::train ? stage.shareSize() : 0;
    if (sum.values.size() != expected) {
      throw ProtocolError("bad-part", "the sum over the members has " +
                                          std::to_string(sum.values.size()) +
                                          " values instead of " + std::to_string(expected));
    }
    if (expected > 0) stage.readSum(work.at.step, sum.values);
    stage.setMetrics(work.at.step, std::move(sum.metrics));
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
