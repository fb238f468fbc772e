#include "server/cohort/saved_by_all.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "common/core/error.h"

namespace cleave {

void SavedByAll::decided(const StepDecision& decision) {
  if (members_.empty() || !decision.checkpoint) return;
  if (step_ != 0) {
    throw ProtocolError("too-many-in-flight",
                        fmt::format("step {} asks for a checkpoint before that of step {} is saved",
                                    decision.step, step_));
  }
  step_ = decision.step;
}

void SavedByAll::savedByMember(std::size_t member, const Saved& saved) {
  if (member >= parts_.size() || step_ == 0 || saved.step != step_ || parts_[member]) {
    throw ProtocolError(
        "unexpected-message",
        fmt::format("Saved of step {} arrived, but was not requested from this client",
                    saved.step));
  }
  parts_[member] = saved;
  reportIfComplete();
}

void SavedByAll::leaves(std::size_t member) {
  if (member >= members_.size() || leaving_[member]) {
    throw ProtocolError("unexpected-message", "Drain arrived twice, or not at the first server");
  }
  leaving_[member] = true;
  for (std::size_t other = 0; other < clients_.size(); ++other) {
    const auto link = clients_[other].lock();
    if (other != member && link) link->send(Drain{0, members_[member], false});
  }
}

void SavedByAll::joins(const std::string& name) {
  if (std::exchange(hasAskedToJoin_, true)) return;
  for (const auto& client : clients_) {
    if (const auto link = client.lock()) link->send(Drain{0, name, true});
  }
}

void SavedByAll::savedHere(const Saved& saved) {
  body_ = saved;
  reportIfComplete();
}

void SavedByAll::reportIfComplete() {
  const auto isThere = [](const auto& part) { return part.has_value(); };
  if (!body_ || !std::ranges::all_of(parts_, isThere)) return;
  Saved all = *std::exchange(body_, std::nullopt);
  step_ = 0;
  for (std::size_t member = 0; member < parts_.size(); ++member) {
    const Saved part = *std::exchange(parts_[member], std::nullopt);
    if (part.code.empty() || !all.code.empty()) continue;
    all.code = part.code;
    all.sentence = fmt::format("{}: {}", members_[member], part.sentence);
    all.sha256.clear();
  }
  for (const auto& client : clients_) {
    if (const auto link = client.lock()) link->send(all);
  }
}

}  // namespace cleave
