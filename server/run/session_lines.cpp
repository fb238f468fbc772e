#include "server/run/session_lines.h"

#include "common/core/log.h"

namespace cleave {
namespace {

constexpr std::chrono::seconds kSecond{1};

}  // namespace

void SessionLines::Second::logLeftOut(const std::string& identity) const {
  if (lines <= kPerSecond) return;
  processLog()->info(
      "{}: {} more lines on its sessions suppressed in one second; each run's log.txt has its "
      "lines",
      identity, lines - kPerSecond);
}

bool SessionLines::take(const std::string& identity, SteadyTime time) {
  Second& second = seconds_.try_emplace(identity, Second{time, 0}).first->second;
  if (time - second.start >= kSecond) {
    second.logLeftOut(identity);
    second = {time, 0};
  }
  const bool mayBeLogged = ++second.lines <= kPerSecond;
  if (!mayBeLogged) ++leftOut_;
  return mayBeLogged;
}

void SessionLines::flush(SteadyTime time) {
  std::erase_if(seconds_, [&](const auto& entry) {
    const bool isOver = time - entry.second.start >= kSecond;
    if (isOver) entry.second.logLeftOut(entry.first);
    return isOver;
  });
}

}  // namespace cleave
