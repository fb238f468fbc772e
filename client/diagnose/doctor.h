// cleave-client doctor: finds problems before a training run starts.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/run/prepare.h"

namespace cleave {

enum class Finding : std::uint8_t { ok, warn, fail, skipped };
std::string_view findingName(Finding finding);  // "ok", "warn", "FAIL", "-"

struct Check {
  std::string name;  // "memory"
  Finding finding = Finding::ok;
  std::string sentence;  // the result
  std::string hint;      // how to fix it; may be empty
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();
};

// A check that failed with this error.
Check failedCheck(const std::string& name, const Error& error);
// Runs `check`. If it throws, returns a failed check named `name`.
Check checked(const std::string& name, const std::function<Check()>& check);

// Called when a check finishes.
using Findings = std::function<void(const Check&)>;

// Checks configuration, data, LibTorch, threads, memory and disk. A failed check does not stop the
// later ones. Returns the configured run if it is valid.
std::optional<PreparedRun> examineMachine(const RunOptions& options, const Findings& found);
// Checks the certificates; then, for each server, checks whether a Cleave server answers, measures
// the link's latency and throughput for about `seconds`, and asks whether the server would admit
// the run. With several servers, each of these checks has the figure "server", numbered from 1.
void examineServers(const RunOptions& options, std::optional<PreparedRun>& run, double seconds,
                    const Findings& found);

}  // namespace cleave
