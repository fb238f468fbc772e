// A cleave-server of our own, for client commands without --server: on a free loopback port, as
// long as this lives.
#pragma once

#include <sys/types.h>

#include <string>

#include "client/session.h"

namespace cleave {

class LocalServer {
 public:
  // Starts the cleave-server beside this program, which keeps its runs in `store`, computes on
  // `device` and may use all memory, and waits until it listens. Throws RunError.
  LocalServer(const std::string& store, const std::string& device);
  // Ends it with SIGTERM, and with SIGKILL where that does not help within 10 s.
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  const ServerAddress& address() const { return address_; }

 private:
  void stop();

  pid_t process_ = -1;
  ServerAddress address_;
};

}  // namespace cleave
