// Formats a server's status document as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cleave {

// A header and one row per session. Rows longer than `columns` (0: no limit) are cut.
std::string statusTable(const nlohmann::ordered_json& status, std::size_t columns);
// Only the rows and their column names; empty if there are no sessions.
std::string sessionsTable(const nlohmann::ordered_json& status, std::size_t columns);

}  // namespace cleave
