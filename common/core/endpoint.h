// A host and port as written in flags and configurations: "127.0.0.1:4800", "[::1]:4800",
// "server:4800".
#pragma once

#include <cstdint>
#include <string>

#include "common/core/units.h"

namespace cleave {

struct Endpoint {
  std::string host;  // IPv6 without brackets
  std::uint16_t port = 0;

  std::string text() const;  // "[::1]:4800"
  bool operator==(const Endpoint&) const = default;
};

// Throws UsageError "bad-address".
Endpoint parseEndpoint(const Placed& value, std::uint16_t minPort);

[[noreturn]] void refuseEndpoint(const Placed& value, const std::string& why,
                                 const std::string& hint);

}  // namespace cleave
