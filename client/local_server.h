// A cleave-server of our own, for client commands without --server: on a free loopback port, as
// long as this lives.
#pragma once

#include <string>

#include "client/child.h"
#include "client/session.h"

namespace cleave {

class LocalServer {
 public:
  // Starts the cleave-server beside this program, which keeps its runs in `store`, computes on
  // `device` and may use all memory, and waits until it listens. `errors`: a descriptor for what it
  // writes on stderr; -1: our own. Throws RunError.
  LocalServer(const std::string& store, const std::string& device, int errors = -1);

  const ServerAddress& address() const { return address_; }

 private:
  ListeningChild server_;
  ServerAddress address_;
};

}  // namespace cleave
