// Where an HTTP server listens, and what it lets others have of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "common/core/units.h"

namespace cleave {

struct HttpSettings {
  // "127.0.0.1:8900", "[::1]:0": an IP address and a port, 0 for one that the system chooses; and
  // who says so, for errors, such as "--dashboard".
  Placed listen;
  // How to say it, for their advice, before an address: "--dashboard ", "--set metrics.listen=".
  std::string option;
  // Other addresses than loopback show all to whoever reaches them, without TLS: they need this.
  bool anywhere = false;
  std::string anywhereOption;  // how to say that: "--set metrics.anywhere=true"

  // Limits.
  std::size_t connections = 32;                      // open at once; one more is told to come again
  std::size_t headBytes = std::size_t{8} << 10;      // of a request
  std::size_t waitingBytes = std::size_t{64} << 20;  // of answers not yet taken: then no new one
  std::chrono::milliseconds idle{30000};             // between a connection's requests
  std::chrono::milliseconds request{5000};           // from a request's first byte to its last
  std::chrono::milliseconds answer{60000};           // for taking the answer
};

}  // namespace cleave
