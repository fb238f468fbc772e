#include "server/run/body_checkpoints.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cassert>
#include <functional>
#include <iterator>
#include <utility>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/core/failpoint.h"

namespace cleave {

struct BodyCheckpoints::Taken {
  std::shared_ptr<const void> held;  // released after the snapshot's memory
  RunCheckpoints::Snapshot snapshot;
};

// ---- Making ----

void BodyCheckpoints::take(const StepDecision& decision, Body& body) {
  // Allows one snapshot at a time: each holds a copy of the state, and admission has counted only
  // one.
  if (!saving_.expired()) {
    throw ProtocolError(
        "too-many-in-flight",
        fmt::format("step {} asks for a checkpoint before the last one is saved", decision.step));
  }
  assert(decision.checkpoint && !taken_);
  const auto taken = std::make_shared<Taken>();
  saving_ = taken;
  taken_ = {taken, &taken->snapshot};
  taken_->keep = decision.keep;
  // A member that has joined has not committed the checkpoint that all continue from.
  if (taken_->keep.empty() && restored_) taken_->keep.push_back(*restored_);
  if (kept_) taken_->keep.push_back(*kept_);
  if (!stored_.checkpoints) return;
  failpoint("snapshot");
  const SteadyTime begin = now();
  taken_->stage = body.saveFile();
  taken_->state.spec = stored_.checkpoints->spec();
  taken_->hasReplicas = hasReplicas_;
  taken_->seconds = secondsSince(begin);
}

void BodyCheckpoints::saveTaken(const EngineState& engine) {
  if (!taken_) return;
  auto snapshot = std::exchange(taken_, nullptr);
  if (!stored_.checkpoints) {
    Saved refused;
    refused.step = engine.applied;
    refused.code = "no-checkpoints";
    refused.sentence = "this server makes no checkpoints";
    return reply(engine.evaluated)(refused);
  }
  snapshot->state.engine = engine;
  snapshot->state.notes = record_.notes();
  CheckpointInfo base = stored_.checkpoints->baseOfSamples(snapshot->keep);
  snapshot->samples = std::move(base.samples);
  // Runs after this step's commit, which is already in the queue.
  saveCodecs(base.step, [checkpoints = stored_.checkpoints, snapshot = std::move(snapshot),
                         saved = reply(engine.evaluated)](SavedCodecs codecs) mutable {
    snapshot->state.codecs = std::move(codecs.states);
    snapshot->error = codecs.error;
    checkpoints->save(std::move(snapshot), saved);
  });
}

// The links' codecs run in one queue, so the last link's states are the last to arrive.
void BodyCheckpoints::saveCodecs(std::uint64_t since,
                                 std::function<void(SavedCodecs saved)> saved) const {
  const auto codecs = std::make_shared<SavedCodecs>();
  for (TensorLink* const edge : edges_) {
    edge->saveCodecs(since, [codecs](SavedCodecs ofEdge) { codecs->add(std::move(ofEdge)); });
  }
  for (const Client& client : clients_) {
    const bool isLast = &client == &clients_.back();
    client.link->saveCodecs(since,
                            [codecs, member = client.member, isLast, saved](SavedCodecs ofClient) {
                              for (TensorCodecs::SavedState& state : ofClient.states)
                                state.member = member;
                              codecs->add(std::move(ofClient));
                              if (isLast) saved(std::move(*codecs));
                            });
  }
}

std::function<void(const Saved&)> BodyCheckpoints::reply(std::uint64_t evaluated) {
  return [io = io_, report = saved_, evaluated, runLog = stored_.log,
          faults = faults_](const Saved& saved) {
    if (runLog && !saved.code.empty() && faults->isNew(saved.code)) {
      runLog->warn("no checkpoint of step {}: {}", saved.step, saved.sentence);
    } else if (runLog && saved.code.empty() && faults->recovered()) {
      runLog->info("checkpoints are made again: the last one is of step {}", saved.step);
    }
    boost::asio::post(io, [report, saved, evaluated] { report(saved, evaluated); });
  };
}

void BodyCheckpoints::close(std::shared_ptr<const void> held) {
  taken_.reset();
  if (const auto saving = saving_.lock()) saving->held = std::move(held);
}

// ---- Restoring ----

EngineState BodyCheckpoints::restore(const Resume& resume, Body& body, const LinkTotals& totals) {
  assert(saving_.expired());
  failpoint("restore");
  if (std::ranges::find(stored_.available, resume.step, &wire::Commit::step) ==
      stored_.available.end()) {
    throw ProtocolError(
        "unexpected-message",
        fmt::format("Resume names step {}, which is not one of HelloOk.available", resume.step));
  }
  const Checkpoint checkpoint = stored_.checkpoints->read(resume.step);
  CheckpointContent content = stored_.checkpoints->contentOf(checkpoint);
  body.restoreFile(writeSafetensors(content.stage));
  restored_ = resume.step;
  restoreCodecs(std::move(content.codecs));
  record_.resumed(resume.step, content.notes, totals);
  return content.engine;
}

void BodyCheckpoints::restoreCodecs(std::vector<TensorCodecs::SavedState> states) const {
  const auto restore = [&](TensorLink& link, const auto& isOwn) {
    const auto own = std::stable_partition(states.begin(), states.end(), std::not_fn(isOwn));
    link.restoreCodecs(std::vector<TensorCodecs::SavedState>(
        std::make_move_iterator(own), std::make_move_iterator(states.end())));
    states.erase(own, states.end());
  };
  for (TensorLink* const edge : edges_) {
    restore(*edge, [&](const auto& state) { return edge->carries(state.flow); });
  }
  for (const Client& client : clients_) {
    if (client.joins) continue;
    restore(*client.link, [&](const auto& state) { return state.member == client.member; });
  }
}

}  // namespace cleave
