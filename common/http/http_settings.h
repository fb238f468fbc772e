// Where an HTTP server listens, and its limits.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "common/core/units.h"

namespace cleave {

struct HttpSettings {
  // An IP address and a port: "127.0.0.1:8900", "[::1]:0"; port 0: the system chooses. Its `place`,
  // such as "--dashboard", is used in errors.
  Placed listen;
  // The option that sets `listen`, for hints; an address is appended: "--dashboard ", "--set
  // metrics.listen=".
  std::string option;
  // Required for addresses other than loopback: without TLS, anyone who can reach the address can
  // see everything.
  bool anywhere = false;
  std::string anywhereOption;  // the option that sets `anywhere`: "--set metrics.anywhere=true"

  // Limits.
  // Maximum open at a time. A further one replaces the one that has waited longest for a request.
  // If all are being answered, it receives a Retry-After.
  std::size_t connections = 32;
  std::size_t headBytes = std::size_t{8} << 10;  // maximum size of a request's head
  // Maximum bytes of answers being sent; above it, requests are refused.
  std::size_t waitingBytes = std::size_t{64} << 20;
  std::chrono::milliseconds idle{30000};    // between a connection's requests
  std::chrono::milliseconds request{5000};  // from a request's first byte to its last
  std::chrono::milliseconds answer{60000};  // for sending the answer
};

}  // namespace cleave
