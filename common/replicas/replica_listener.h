// The group port of a server: accepts the other replicas' connections, for all groups whose replica
// 0 is on this server. A connection that does not belong to a group is closed, after 5 s at the
// latest. At most 64 connections may be unidentified; one more closes the oldest.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/net/streams/io_thread.h"
#include "common/net/streams/relay_protocol.h"
#include "common/replicas/group_hub.h"

namespace cleave {

// Has its own thread, for all connections of this server's groups. The public functions may be
// called on any other thread.
class ReplicaListener {
 public:
  // Listens on "HOST:PORT" (port 0: the system chooses). Throws UsageError "bad-address",
  // "port-in-use", "cannot-bind".
  explicit ReplicaListener(const std::string& address);
  ~ReplicaListener();

  std::uint16_t port() const { return endpoint_.port(); }
  // An address at which this process can reach the listener.
  boost::asio::ip::tcp::endpoint reachableEndpoint() const;
  boost::asio::any_io_executor executor() { return io_.context().get_executor(); }

  // Admits connections to the hub's group until close().
  void open(std::shared_ptr<GroupHub> hub);
  void close(std::shared_ptr<GroupHub> hub);

 private:
  void accept(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> identify(SharedSocket socket);

  IoThread io_;
  boost::asio::ip::tcp::acceptor acceptor_;  // used on the io thread, like all that follows
  boost::asio::ip::tcp::endpoint endpoint_;  // constant
  std::vector<std::shared_ptr<GroupHub>> hubs_;
  std::deque<SharedSocket> unidentified_;
};

}  // namespace cleave
