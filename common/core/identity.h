// Who a client is to a server: the name in its certificate.
#pragma once

#include <string_view>

namespace cleave {

// Who connects without TLS, which only loopback can.
inline constexpr const char* kLocalIdentity = "local";
// The access file's entry for identities that it does not list.
inline constexpr const char* kDefaultIdentity = "default";
// What a client's certificate has as its SAN URI, before the name.
inline constexpr std::string_view kClientUri = "cleave:client/";

// A name that a client's certificate can have: [a-z0-9][a-z0-9-]{0,62}, and neither of those above.
bool isClientName(std::string_view name);

}  // namespace cleave
