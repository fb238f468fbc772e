// Names in certificates: of clients, which are their identities, and of the server's machine.
#pragma once

#include <string>
#include <vector>

#include "common/files/identity.h"

namespace cleave {

// Throws UsageError "bad-name" unless isClientName().
void checkClientName(const std::string& name);

// The default names of a server's certificate: this machine's host name, localhost, the loopback
// addresses, and the addresses of its interfaces.
std::vector<std::string> namesOfThisMachine();
// Returns the given host names and IP addresses, and those of loopback; if none are given,
// namesOfThisMachine(). Throws UsageError "bad-name".
std::vector<std::string> serverNamesFrom(const std::vector<std::string>& given);

}  // namespace cleave
