// Resolves `codec: auto` before a run starts: trains a few steps with the server, in separate
// sessions whose models are discarded.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/run/prepare.h"
#include "common/core/log.h"

namespace cleave {

// Replaces the `auto` codecs in the run's settings, plan and run spec, and in the run folder's
// config.yaml. Returns the trials for summary.json, or nothing if no flow has `auto`. If no trial
// is possible, uses AutoCodec::start and logs the reason. Throws the errors of
// ClientSession::connect(), those of a trial that no codec can change, and RunError "interrupted".
std::optional<nlohmann::json> resolveAutoCodecs(PreparedRun& run, spdlog::logger& log);

// Returns {activation/0: "none", …}, a value that the key `codec` accepts in a configuration and in
// --set. `codecs`: ParsedCodecs, or the same as JSON.
std::string codecMapText(const nlohmann::json& codecs);
// One spec such as "none" if all flows have the same codec; otherwise codecMapText().
std::string codecsText(const ParsedCodecs& codecs);

}  // namespace cleave
