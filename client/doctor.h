// Looks for what keeps a training from working, before it is begun: cleave-client doctor.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/commands.h"

namespace cleave {

enum class Finding : std::uint8_t { ok, warn, fail, skipped };
std::string_view findingName(Finding finding);  // "ok", "warn", "FAIL", "-"

struct Check {
  std::string name;  // "memory"
  Finding finding = Finding::ok;
  std::string sentence;  // what was found
  std::string hint;      // what to do about it; empty where there is nothing to
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();
};

// What `check` finds; what it throws is a failure.
Check checked(const std::string& name, const std::function<Check()>& check);

// Takes each check as it is done.
using Findings = std::function<void(const Check&)>;

// Configuration, data, LibTorch, threads, memory, disk. Later checks go on without what earlier
// ones did not find.
void examineMachine(const RunOptions& options, const Findings& found);
// Certificates, and whether the server answers, who it is, and how long and fast the way there is,
// for about `seconds`.
void examineServer(const RunOptions& options, double seconds, const Findings& found);

}  // namespace cleave
