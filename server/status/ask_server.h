// Sends requests to the server running on this machine, through its status socket.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/program/program.h"

namespace cleave {

// The requests that a server accepts at its status socket; `kEndRequest` is followed by a session
// number.
inline constexpr const char* kStatusRequest = "status";
inline constexpr const char* kEndRequest = "end ";

// The path of the status socket of the server with this configuration. Throws UsageError
// "status-off" if the server has none.
std::string socketOfServer(const CommonOptions& options);
// Returns the server's answer. Throws RunError "no-status" if there is no server or it does not
// answer.
nlohmann::ordered_json askServer(const std::string& socket, const std::string& request);

}  // namespace cleave
