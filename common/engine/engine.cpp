#include "common/engine/engine.h"

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

Engine::Engine(const EngineOptions& options, StageRows rows)
    : options_(options),
      stage_(std::move(rows), options.schedule->pick, options.inFlight, options.staleness > 0) {}

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
  if (open_.empty()) {
    stage_.begin(at.phase, share.count);
  } else {
    stage_.append(share.count);
  }
  open_.push_back({at, share, {}});
  open_.back().at.i = 0;
}

void Engine::endBatch() {
  assert(!open_.empty() && stage_.isDone(open_.front().share.count));
  ended_ = open_.front();
  open_.pop_front();
  stage_.dropFirst(ended_->share.count);
  ++batchesEnded_;
}

bool Engine::isOldestComputed() const {
  return !open_.empty() && open_.front().at.phase == Phase::train &&
         stage_.isDone(open_.front().share.count);
}

std::optional<std::size_t> Engine::find(const Key& key) const {
  for (std::size_t b = 0; b < open_.size(); ++b) {
    if (open_[b].at.phase == key.phase && open_[b].at.step == key.step) return b;
  }
  return std::nullopt;
}

std::uint32_t Engine::sequenceIndex(std::size_t batch) const {
  assert(batch <= open_.size());
  std::uint32_t first = 0;
  for (std::size_t b = 0; b < batch; ++b) first += open_[b].share.count;
  return first;
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
  const std::uint32_t position = sequenceIndex(batch, message.at.i);
  if (stage_.hasArrived(message.flow, position)) {
    refuse("bad-key", toString(message.key()) + " arrived twice");
  }
  stage_.arrived(message.flow, position, std::move(message.payload));
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
  auto action = stage_.next();
  if (!action) return std::nullopt;
  Work work = workOf(action->kind, std::move(action->inputs));
  assert(action->i < sequenceIndex(open_.size()));
  std::size_t batch = 0;
  while (action->i >= open_[batch].share.count) action->i -= open_[batch++].share.count;
  work.at = open_[batch].at;
  work.at.i = open_[batch].share.at(action->i);
  work.isFirst = action->i == 0;
  return work;
}

std::vector<TensorMessage> Engine::finishOfStage(const Work& work, Result&& result) {
  stage_.completed(work.kind);
  const auto flows = stage_.outputsOf(work.kind);
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
