// The server's sessions: all connections that ConnectionLimits has admitted. io thread only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "server/sessions/session.h"

namespace cleave {

class SessionTable {
 public:
  // Adds a session with the next number.
  std::shared_ptr<Session> open(const SessionContext& context, boost::asio::ip::tcp::socket socket);
  void remove(const std::shared_ptr<Session>& session);

  std::size_t size() const { return sessions_.size(); }
  bool empty() const { return sessions_.empty(); }
  // Ends each session when its current step is done. Do not call open() afterwards.
  void drain();
  bool isDraining() const { return isDraining_; }
  // `function` may end sessions.
  void forEach(const std::function<void(Session&)>& function) const;

  // Admitted sessions of one kind.
  struct Count {
    std::uint64_t open = 0;
    std::uint64_t total = 0;  // since the server started
  };
  std::map<std::string, Count> counts() const;  // counts by kind

 private:
  std::set<std::shared_ptr<Session>> sessions_;
  std::uint64_t opened_ = 0;
  bool isDraining_ = false;
  std::map<std::string, std::uint64_t> ended_;  // by kind
};

}  // namespace cleave
