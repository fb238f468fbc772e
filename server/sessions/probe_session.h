// The session of a client that measures its link instead of training: no run, no folder, constant
// memory.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "common/link/probe/probe_link.h"
#include "server/sessions/session.h"

namespace cleave {

class ProbeSession {
 public:
  // Throws Error with the code and sentence of the refusal: "probe-not-allowed", "bad-run-spec",
  // "too-many-sessions".
  ProbeSession(const SessionContext& context, std::shared_ptr<Connection> connection,
               const std::string& identity, std::uint64_t number, const wire::Hello& hello);

  // Answers the Hello. Throws Error.
  boost::asio::awaitable<void> accept();
  // Runs the session to its end. Does not throw.
  boost::asio::awaitable<void> serve();

 private:
  const SessionContext& context_;
  const std::shared_ptr<Connection> connection_;
  const std::string identity_;
  const std::uint64_t number_;
  const std::unique_ptr<Admission::Ticket> ticket_;
  std::uint64_t up_ = 0;  // payload bytes
  std::uint64_t down_ = 0;
  ProbeLink link_;
};

}  // namespace cleave
