// Runs a cleave-server for client commands without --server: on a free loopback port, for the
// lifetime of the object.
#pragma once

#include <string>
#include <vector>

#include "client/run/child.h"
#include "client/run/session.h"

namespace cleave {

// What a local server needs for this model: to allow it, if others do not.
std::vector<std::string> overridesFor(const std::string& model);

class LocalServer {
 public:
  // Starts the cleave-server in this program's folder and waits until it listens. The server stores
  // its runs in `store`, computes on `device`, and may use all memory. `overrides`: more of its
  // configuration, as for --set. `errors`: descriptor for the server's stderr; -1: inherit this
  // process's stderr. Throws RunError.
  LocalServer(const std::string& store, const std::string& device,
              const std::vector<std::string>& overrides = {}, int errors = -1);

  const ServerAddress& address() const { return address_; }
  // Call after a connection to it has broken. If it has ended, throws RunError "own-server-ended"
  // with the reason and the log of its run `runId`.
  void checkAlive(const std::string& runId);

 private:
  ListeningChild server_;
  const std::string store_;
  ServerAddress address_;
};

}  // namespace cleave
