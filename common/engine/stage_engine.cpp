#include "common/engine/stage_engine.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace cleave {

StageRows clientRows(const std::vector<Place>& bodies) {
  const Place& first = bodies.front();
  const Place& last = bodies.back();
  StageRows stage;
  stage.bodies = static_cast<std::uint32_t>(last.lastCut - first.firstCut);
  stage.opens = ActionKind::headForward;
  stage.rows = {{ActionKind::headForward, {}, activationsOf(first.firstCut, first.first)},
                {ActionKind::tailStep, activationsOf(last.lastCut, last.last),
                 gradientsOf(last.lastCut, last.last)}};
  // A head before a cut without gradients is not trained.
  auto gradients = gradientsOf(first.firstCut, first.first);
  if (!gradients.empty()) {
    stage.rows.push_back({ActionKind::headBackward, std::move(gradients), {}});
  }
  return stage;
}

StageRows bodyRows(const Place& place, std::uint32_t bodies, bool splitsBackward) {
  StageRows stage;
  stage.hop = static_cast<std::uint32_t>(place.firstCut) + 1;
  stage.bodies = bodies;
  stage.rows = {{ActionKind::bodyForward, activationsOf(place.firstCut, place.first),
                 activationsOf(place.lastCut, place.last)}};
  auto gradients = gradientsOf(place.lastCut, place.last);
  if (!gradients.empty()) {
    stage.rows.push_back(
        {ActionKind::bodyBackward, std::move(gradients), gradientsOf(place.firstCut, place.first)});
    if (splitsBackward && !stage.rows.back().outputs.empty()) {
      stage.rows.push_back({ActionKind::bodyWeights, {}, {}, ActionKind::bodyBackward});
    }
  }
  return stage;
}

StageEngine::StageEngine(StageRows rows, Pick pick, std::uint32_t inFlight, bool overlapsSteps)
    : stage_(std::move(rows)),
      pick_(std::move(pick)),
      inFlight_(inFlight),
      overlapsSteps_(overlapsSteps) {
  for (const StageRow& row : stage_.rows) {
    for (const Flow flow : row.inputs) inputs_[flow];
  }
}

void StageEngine::begin(Phase phase, std::uint32_t microBatches) {
  phase_ = phase;
  microBatches_ = 0;
  dropped_ = 0;
  started_.fill(0);
  completed_.fill(0);
  for (auto& [flow, input] : inputs_) {
    input.arrived.clear();
    input.payloads.clear();
  }
  append(microBatches);
}

void StageEngine::append(std::uint32_t microBatches) {
  microBatches_ += microBatches;
  for (auto& [flow, input] : inputs_) {
    input.arrived.resize(microBatches_, false);
    input.payloads.resize(microBatches_);
  }
}

void StageEngine::dropFirst(std::uint32_t microBatches) {
  assert(microBatches <= microBatches_);
  microBatches_ -= microBatches;
  dropped_ += microBatches;
  for (const StageRow& row : stage_.rows) {
    if (!runs(row)) continue;
    assert(completed_[indexOf(row.kind)] >= microBatches);
    started_[indexOf(row.kind)] -= microBatches;
    completed_[indexOf(row.kind)] -= microBatches;
  }
  for (auto& [flow, input] : inputs_) {
    input.arrived.erase(input.arrived.begin(), input.arrived.begin() + microBatches);
    input.payloads.erase(input.payloads.begin(), input.payloads.begin() + microBatches);
  }
}

void StageEngine::arrived(Flow flow, std::uint32_t i, Payload payload) {
  assert(isInput(flow) && i < microBatches_);
  Input& input = inputs_[flow];
  assert(!input.arrived[i]);
  input.arrived[i] = true;
  input.payloads[i] = std::move(payload);
}

bool StageEngine::runs(const StageRow& row) const {
  if (phase_ == Phase::train) return true;
  return !row.after && (row.inputs.empty() || isActivation(row.inputs.front()));
}

bool StageEngine::has(ActionKind kind) const {
  return std::any_of(stage_.rows.begin(), stage_.rows.end(),
                     [kind](const StageRow& row) { return row.kind == kind; });
}

const StageRow& StageEngine::rowOf(ActionKind kind) const {
  for (const StageRow& row : stage_.rows) {
    if (row.kind == kind) return row;
  }
  throw std::logic_error("the stage has no such action");
}

bool StageEngine::isReady(const StageRow& row) const {
  const std::uint32_t i = startedOf(row.kind);
  if (i >= microBatches_ || !runs(row)) return false;
  if (row.after && i >= completedOf(*row.after)) return false;
  if (stage_.opens == row.kind) {
    // A micro-batch counts as in flight until its last action here begins. Until then the stage
    // holds what autograd saved for it, or a reply that is waiting.
    const auto last = std::find_if(stage_.rows.rbegin(), stage_.rows.rend(),
                                   [this](const StageRow& each) { return runs(each); });
    if (i - startedOf(last->kind) >= inFlight_) return false;
  }
  return std::all_of(row.inputs.begin(), row.inputs.end(),
                     [&](Flow flow) { return inputs_.at(flow).arrived[i]; });
}

std::optional<ActionKind> StageEngine::pick() const {
  ReadyKinds ready;
  for (const StageRow& row : stage_.rows) ready.ready[indexOf(row.kind)] = isReady(row);
  if (!ready.any()) return std::nullopt;
  StageState state{stage_.hop, stage_.bodies, {}, dropped_ + microBatches_, inFlight_, started_};
  // Whether another batch has arrived depends on the timing, so the order does not depend on it.
  state.isAlone = !overlapsSteps_ || phase_ == Phase::eval;
  if (state.isAlone) state.inFlight = std::min(inFlight_, microBatches_);
  for (const StageRow& row : stage_.rows) {
    state.runs[indexOf(row.kind)] = runs(row);
    state.started[indexOf(row.kind)] += dropped_;
  }
  const auto kind = pick_(ready, state);
  if (kind && !ready[*kind]) {
    throw std::logic_error("the schedule picked an action that is not ready");
  }
  return kind;
}

std::optional<StageEngine::Action> StageEngine::next() {
  const auto kind = pick();
  if (!kind) return std::nullopt;
  assert(started_[indexOf(*kind)] < microBatches_);
  Action action{*kind, started_[indexOf(*kind)]++, {}};
  for (const Flow flow : rowOf(*kind).inputs) {
    assert(inputs_[flow].arrived[action.i]);
    action.inputs.push_back(std::move(inputs_[flow].payloads[action.i]));
  }
  return action;
}

std::vector<Flow> StageEngine::outputsOf(ActionKind kind) const {
  std::vector<Flow> outputs = rowOf(kind).outputs;
  if (phase_ == Phase::eval) {
    outputs.erase(std::remove_if(outputs.begin(), outputs.end(), isGradient), outputs.end());
  }
  return outputs;
}

bool StageEngine::isDone(std::uint32_t microBatches) const {
  return std::all_of(stage_.rows.begin(), stage_.rows.end(), [&](const StageRow& row) {
    return !runs(row) || completedOf(row.kind) >= microBatches;
  });
}

std::optional<std::size_t> nextOf(
    const std::deque<StageEngine>& stages,
    const std::function<std::uint32_t(std::size_t stage, ActionKind kind)>& batchOf) {
  const auto rank = [](ActionKind kind) {
    return kind == ActionKind::bodyBackward ? 2 : kind == ActionKind::bodyWeights ? 0 : 1;
  };
  std::optional<std::size_t> best;
  std::tuple<std::int64_t, int, std::uint32_t> ofBest;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto kind = stages[s].pick();
    if (!kind) continue;
    const std::int64_t age = batchOf ? -std::int64_t{batchOf(s, *kind)} : 0;
    const std::tuple own{age, rank(*kind), stages[s].leftOf(*kind)};
    if (best && own <= ofBest) continue;
    best = s;
    ofBest = own;
  }
  return best;
}

}  // namespace cleave
