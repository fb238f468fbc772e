#include "common/core/failpoint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <sstream>
#include <string>

#include "common/core/durable.h"
#include "common/core/error.h"

namespace cleave {
namespace {

struct Armed {
  std::string name, action;
  std::atomic<long> left;  // remaining calls before the action is taken
  Armed(std::string at, long times, std::string what)
      : name(std::move(at)), action(std::move(what)), left(times) {}
};

std::deque<Armed> armedByEnvironment() {
  std::deque<Armed> armed;
  const char* const text = std::getenv("CLEAVE_FAIL");
  std::istringstream entries(text == nullptr ? "" : text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::istringstream parts(entry);
    std::string name, times, action;
    std::getline(parts, name, ':');
    std::getline(parts, times, ':');
    std::getline(parts, action);
    armed.emplace_back(name, std::atol(times.c_str()), action);
  }
  return armed;
}

}  // namespace

int failingCall(const char* name) {
  static std::deque<Armed> armed = armedByEnvironment();
  for (Armed& each : armed) {
    if (each.name != name || --each.left != 0) continue;
    if (each.action == "enospc") return ENOSPC;
    if (each.action == "eio") return EIO;
    std::raise(SIGKILL);
  }
  return 0;
}

void failpoint(const char* name) {
  if (const int error = failingCall(name)) throwCannotWrite(name, "a test made it fail", error);
}

}  // namespace cleave
