#include "common/engine/engine.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace cleave {

void Engine::refuse(std::string code, const std::string& sentence) {
  throw ProtocolError(std::move(code), sentence);
}

std::string Engine::stepText(Phase phase, std::uint64_t step) {
  return std::string(phaseName(phase)) + " step " + std::to_string(step);
}

Engine::Engine(const EngineOptions& options, const StageRows& rows, std::size_t lanes)
    : options_(options) {
  assert(lanes > 0);
  while (lanes_.size() < lanes) {
    lanes_.emplace_back(rows, options.schedule->pick, options.inFlight, options.staleness > 0);
  }
}

// ---- Batches ----

bool Engine::mayStart(const MicroBatch& at) const {
  const bool train = at.phase == Phase::train;
  if (open_.empty()) return !train || at.step == applied_ + 1;
  const MicroBatch& newest = open_.back().at;
  return train && newest.phase == Phase::train && at.step == newest.step + 1 &&
         at.step <= applied_ + 1 + options_.staleness;
}

void Engine::startBatch(const MicroBatch& at, const Share& share) {
  assert(mayStart(at));
  if (at.phase == Phase::eval) evaluated_ = at.step;
  const bool isFirst = open_.empty();
  open_.push_back({at, share, {}});
  open_.back().at.i = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::uint32_t count = shareOf(open_.back(), lane).count;
    if (isFirst) {
      lanes_[lane].begin(at.phase, count);
    } else {
      lanes_[lane].append(count);
    }
  }
}

void Engine::endBatch() {
  assert(!open_.empty() && areComputed(1));
  ended_ = open_.front();
  open_.pop_front();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].dropFirst(shareOf(*ended_, lane).count);
  }
  ++batchesEnded_;
}

bool Engine::isOldestComputed() const {
  return !open_.empty() && open_.front().at.phase == Phase::train && areComputed(1);
}

Share Engine::shareOf(const BatchSeconds& batch, std::size_t lane) const {
  if (lanes_.size() == 1) return batch.share;
  return options_.replica.shareOf(batch.at.batch.shareOfMember(static_cast<std::uint32_t>(lane)));
}

bool Engine::areComputed(std::size_t batches) const {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane].isDone(sequenceIndex(lane, batches))) return false;
  }
  return true;
}

bool Engine::isComplete(ActionKind kind, std::size_t batch, std::uint32_t i) const {
  MicroBatch at = open_[batch].at;
  at.i = i;
  const std::size_t lane = laneOf(at);
  return sequenceIndex(lane, batch, i) < lanes_[lane].completedOf(kind);
}

std::optional<std::size_t> Engine::find(const Key& key) const {
  for (std::size_t b = 0; b < open_.size(); ++b) {
    if (open_[b].at.phase == key.phase && open_[b].at.step == key.step) return b;
  }
  return std::nullopt;
}

std::uint32_t Engine::sequenceIndex(std::size_t lane, std::size_t batches) const {
  assert(batches <= open_.size());
  std::uint32_t count = 0;
  for (std::size_t b = 0; b < batches; ++b) count += shareOf(open_[b], lane).count;
  return count;
}

// ---- Tensors that arrive ----

void Engine::checkAgainstBatch(const TensorMessage& message, const Division& batch,
                               const Share& share) {
  if (message.at.batch != batch || !share.has(message.at.i)) {
    refuse("bad-key", toString(message.key()) + " does not fit a batch of " +
                          std::to_string(batch.samples) + " samples in " +
                          std::to_string(batch.count) +
                          " micro-batches, or belongs to another peer");
  }
}

void Engine::store(TensorMessage&& message, std::size_t batch) {
  const std::size_t lane = laneOf(message.at);
  const std::uint32_t position = sequenceIndex(lane, batch, message.at.i);
  if (lanes_[lane].hasArrived(message.flow, position)) {
    refuse("bad-key", toString(message.key()) + " arrived twice");
  }
  lanes_[lane].arrived(message.flow, position, std::move(message.payload));
}

// ---- Actions ----

Work Engine::workOf(ActionKind kind, Input input) const {
  Work work;
  work.kind = kind;
  if (!open_.empty()) {
    work.at = open_.front().at;
  } else if (ended_) {
    work.at = ended_->at;
  }
  work.input = std::move(input);
  return work;
}

std::optional<Work> Engine::nextOfStage() {
  const auto batchOf = [this](std::size_t lane, ActionKind kind) {
    std::uint32_t batch = 0;
    while (lanes_[lane].startedOf(kind) >= sequenceIndex(lane, batch + 1)) ++batch;
    return batch;
  };
  const auto lane = nextOf(lanes_, batchOf);
  if (!lane) return std::nullopt;
  StageEngine::Action action = *lanes_[*lane].next();
  Work work = workOf(action.kind, std::move(action.inputs));
  std::size_t batch = 0;
  while (action.i >= sequenceIndex(*lane, batch + 1)) ++batch;
  work.at = open_[batch].at;
  work.at.i = shareOf(open_[batch], *lane).at(action.i - sequenceIndex(*lane, batch));
  std::uint32_t started = 0;  // of the batch
  for (std::size_t each = 0; each < lanes_.size(); ++each) {
    const std::uint32_t before = sequenceIndex(each, batch);
    const std::uint32_t inLane = lanes_[each].startedOf(action.kind);
    if (inLane > before) started += std::min(inLane - before, shareOf(open_[batch], each).count);
  }
  work.isFirst = started == 1;
  return work;
}

std::vector<TensorMessage> Engine::finishOfStage(const Work& work, Result&& result) {
  StageEngine& lane = lanes_[laneOf(work.at)];
  lane.completed(work.kind);
  const auto flows = lane.outputsOf(work.kind);
  std::vector<TensorMessage> messages;
  if (flows.empty()) return messages;
  auto& bundle = std::get<TensorBundle>(result);
  if (bundle.size() != flows.size()) {
    throw std::logic_error(std::string(actionName(work.kind)) + " made another number of tensors");
  }
  for (std::size_t t = 0; t < flows.size(); ++t) {
    messages.push_back({flows[t], work.at, versionOf(work.at), std::move(bundle[t])});
  }
  return messages;
}

std::optional<Work> Engine::next() {
  std::optional<Work> work = nextWork();
  if (!work) return work;
  work->token = nextToken_++;
  Work& kept = running_[work->token];
  kept.kind = work->kind;
  kept.at = work->at;
  if (const auto* flow = std::get_if<Flow>(&work->input)) kept.input = *flow;
  return work;
}

void Engine::complete(std::uint64_t token, Result result, double seconds) {
  auto node = running_.extract(token);
  if (node.empty()) throw std::logic_error("an action completed twice, or was never handed out");
  const MicroBatch& at = node.mapped().at;
  if (const auto batch = find({at.phase, at.step, at.i, {}})) {
    open_[*batch].seconds[indexOf(node.mapped().kind)] += seconds;
  }
  finish(std::move(node.mapped()), std::move(result), seconds);
}

}  // namespace cleave
