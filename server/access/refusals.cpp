#include "server/access/refusals.h"

#include "common/core/log.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::chrono::seconds kBetweenLines{1};

}  // namespace

void Refusals::note(const std::string& who, const Error& error, SteadyTime time,
                    const std::string& identity) {
  const bool isFirst = !reasons_.contains(error.code());
  Reason& reason = reasons_[error.code()];
  ++reason.count;
  if (!isFirst && time - reason.lastLine < kBetweenLines) {
    ++reason.unsaid;
    return;
  }
  sayUnsaid(error.code(), reason, time);
  reason.lastLine = time;
  ++logged_;
  logAbout(identity, "")->warn("{}: refused: {} ({})", who, printable(error.what()), error.code());
}

void Refusals::count(const std::exception& error) {
  if (const auto* broken = dynamic_cast<const ProtocolError*>(&error)) {
    ++reasons_[broken->code()].count;
  }
}

void Refusals::flush(SteadyTime time) {
  for (auto& [code, reason] : reasons_) {
    if (time - reason.lastLine >= kBetweenLines) sayUnsaid(code, reason, time);
  }
}

void Refusals::sayUnsaid(const std::string& code, Reason& reason, SteadyTime time) {
  if (reason.unsaid == 0) return;
  ++logged_;
  processLog()->warn("refused: {} more ({}), {} in all", reason.unsaid, code, reason.count);
  reason.unsaid = 0;
  reason.lastLine = time;
}

std::string Refusals::summary() const {
  std::string text;
  for (const auto& [code, reason] : reasons_) {
    text += (text.empty() ? "" : ", ") + std::to_string(reason.count) + " " + code;
  }
  return text;
}

std::map<std::string, std::uint64_t> Refusals::counts() const {
  std::map<std::string, std::uint64_t> counts;
  for (const auto& [code, reason] : reasons_) counts[code] = reason.count;
  return counts;
}

std::uint64_t Refusals::count(const std::string& reason) const {
  const auto found = reasons_.find(reason);
  return found == reasons_.end() ? 0 : found->second.count;
}

}  // namespace cleave
