// Asks the server that runs on this machine, through its status socket.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/program.h"

namespace cleave {

// The lines that a server answers at its status socket; `kEndRequest` is followed by a session's
// number.
inline constexpr const char* kStatusRequest = "status";
inline constexpr const char* kEndRequest = "end ";

// Where the server with this configuration has its status socket. Throws UsageError "no-status":
// it has none.
std::string socketOfServer(const CommonOptions& options);
// The server's answer. Throws RunError "no-status": there is no server, or it does not answer.
nlohmann::ordered_json askServer(const std::string& socket, const std::string& request);

}  // namespace cleave
