// Names in certificates: of clients, which are identities, and of the machine that a server is on.
#pragma once

#include <string>
#include <vector>

#include "common/core/identity.h"

namespace cleave {

// isClientName(), or throws UsageError "bad-name".
void checkClientName(const std::string& name);

// What a server's certificate is for where nobody says: this machine's host name, localhost, the
// loopback addresses, and the addresses of its interfaces.
std::vector<std::string> namesOfThisMachine();
// The host names and IP addresses that were given, and those of loopback; with none,
// namesOfThisMachine(). Throws UsageError "bad-name".
std::vector<std::string> serverNamesFrom(const std::vector<std::string>& given);

}  // namespace cleave
