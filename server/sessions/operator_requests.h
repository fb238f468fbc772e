// Answers the requests of the server's operator at its status socket (ask_server.h). io thread,
// except the constructor.
#pragma once

#include <cstdint>
#include <string>

#include "common/core/clock.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"

namespace cleave {

class OperatorRequests {
 public:
  // Borrows the context and the sessions. `address`: the address on which the server listens.
  OperatorRequests(const SessionContext& context, const SessionTable& sessions,
                   std::string address);

  // Returns a JSON document for a request line. An unknown request is answered like
  // `kStatusRequest`.
  std::string answer(const std::string& request) const;

 private:
  std::string status() const;
  bool endSession(std::uint64_t number) const;

  const SessionContext& context_;
  const SessionTable& sessions_;
  const std::string address_;
  const SteadyTime start_ = now();
};

}  // namespace cleave
