#include "common/engine/engine.h"

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
    : options_(options), stage_(std::move(rows), options.schedule->pick, options.inFlight) {}

void Engine::startBatch(const MicroBatch& at) {
  batch_ = at;
  batch_->i = 0;
  seconds_.fill(0);
  if (at.phase == Phase::eval) evaluated_ = at.step;
  stage_.begin(at.phase, at.microBatches);
}

// ---- Tensors that arrive ----

void Engine::checkAgainstBatch(const TensorMessage& message) const {
  const MicroBatch& at = message.at;
  if (at.i >= batch_->microBatches || at.microBatches != batch_->microBatches ||
      at.samples != batch_->samples) {
    refuse("bad-key", toString(message.key()) + " does not fit a batch of " +
                          std::to_string(batch_->samples) + " samples in " +
                          std::to_string(batch_->microBatches) + " micro-batches");
  }
}

void Engine::store(TensorMessage&& message) {
  if (stage_.hasArrived(message.flow, message.at.i)) {
    refuse("bad-key", toString(message.key()) + " arrived twice");
  }
  stage_.arrived(message.flow, message.at.i, std::move(message.payload));
}

// ---- Actions ----

Work Engine::workOf(ActionKind kind, Input input) const {
  Work work;
  work.kind = kind;
  if (batch_) work.at = *batch_;
  work.input = std::move(input);
  return work;
}

std::optional<Work> Engine::nextOfStage() {
  auto action = stage_.next();
  if (!action) return std::nullopt;
  Work work = workOf(action->kind, std::move(action->inputs));
  work.at.i = action->i;
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
    messages.push_back({flows[t], work.at, applied_, std::move(bundle[t])});
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
  seconds_[indexOf(node.mapped().kind)] += seconds;
  finish(std::move(node.mapped()), std::move(result), seconds);
}

}  // namespace cleave
