// A server's status document, for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cleave {

// A head and a row a session. Rows longer than `columns` (0: no limit) are cut.
std::string statusTable(const nlohmann::ordered_json& status, std::size_t columns);
// The rows alone, with their column names; empty if there are no sessions.
std::string sessionsTable(const nlohmann::ordered_json& status, std::size_t columns);

}  // namespace cleave
