// The roster of a cohort in checkpoints and summaries.
#pragma once

#include <nlohmann/json.hpp>

#include "common/topology/cohort.h"

namespace cleave {

nlohmann::json toJson(const Roster& roster);
// Throws nlohmann::json::exception.
Roster rosterFromJson(const nlohmann::json& json);

}  // namespace cleave
