// Names in certificates: of clients, which are identities, and of the machine that a server is on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Who connects without TLS, which only loopback can.
inline constexpr const char* kLocalIdentity = "local";
// The access file's entry for identities that it does not list.
inline constexpr const char* kDefaultIdentity = "default";

// A name that a client's certificate can have: [a-z0-9][a-z0-9-]{0,62}, and neither of those above.
bool isClientName(std::string_view name);
// Throws UsageError "bad-name".
void checkClientName(const std::string& name);

// What a server's certificate is for where nobody says: this machine's host name, localhost, the
// loopback addresses, and the addresses of its interfaces.
std::vector<std::string> namesOfThisMachine();
// The host names and IP addresses that were given, and those of loopback; with none,
// namesOfThisMachine(). Throws UsageError "bad-name".
std::vector<std::string> serverNamesFrom(const std::vector<std::string>& given);

}  // namespace cleave
