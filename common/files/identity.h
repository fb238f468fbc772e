// A client's identity on a server: the name in its certificate.
#pragma once

#include <string_view>

namespace cleave {

// The identity of all clients that connect without TLS.
inline constexpr const char* kLocalIdentity = "local";
// The access file's entry for identities that it does not list.
inline constexpr const char* kDefaultIdentity = "default";
// Precedes the name in the SAN URI of a client's certificate.
inline constexpr std::string_view kClientUri = "cleave:client/";

// Whether a client's certificate may carry this name: [a-z0-9][a-z0-9-]{0,62}, and neither of the
// two above.
bool isClientName(std::string_view name);

}  // namespace cleave
