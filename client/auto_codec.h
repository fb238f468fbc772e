// Resolves `codec: auto` before a run begins: a few training steps with the server, in separate
// sessions whose models are discarded.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/prepare.h"
#include "common/core/log.h"

namespace cleave {

// Replaces the `auto` codecs of the run, in its settings, plan and run spec, and in the run
// folder's config.yaml. Returns the trials for summary.json; nothing if no flow has `auto`. If no
// trial is possible, the codec is kAutoStart, and the log says why. Throws what
// ClientSession::connect throws, or "interrupted".
std::optional<nlohmann::json> resolveAutoCodecs(PreparedRun& run, spdlog::logger& log);

// {activation/0: "none", …}: what `codec` takes in a configuration and after --set.
std::string codecMapText(const std::map<std::string, std::string>& codecs);

}  // namespace cleave
