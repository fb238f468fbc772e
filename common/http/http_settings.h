// Where an HTTP server listens, and its limits.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "common/core/units.h"

namespace cleave {

struct HttpSettings {
  // An IP address and a port: "127.0.0.1:8900", "[::1]:0"; port 0: the system chooses. Its place,
  // such as "--dashboard", is for errors.
  Placed listen;
  // The option that sets it, for hints; an address is appended: "--dashboard ", "--set
  // metrics.listen=".
  std::string option;
  // Required for other addresses than loopback, which show everything, without TLS, to anyone who
  // can reach them.
  bool anywhere = false;
  std::string anywhereOption;  // the option that sets it: "--set metrics.anywhere=true"

  // Limits.
  std::size_t connections = 32;                  // open at the same time; others get a Retry-After
  std::size_t headBytes = std::size_t{8} << 10;  // of a request
  std::size_t waitingBytes = std::size_t{64} << 20;  // of answers being sent; no new ones above it
  std::chrono::milliseconds idle{30000};             // between a connection's requests
  std::chrono::milliseconds request{5000};           // from a request's first byte to its last
  std::chrono::milliseconds answer{60000};           // for sending the answer
};

}  // namespace cleave
