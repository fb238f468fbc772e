// The relay: accepts clients at one address and the server at another, and pairs each client with a
// connection that the server opens for it. Everything runs on the thread that runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/core/clock.h"
#include "common/core/units.h"
#include "common/net/streams/relay_protocol.h"
#include "tools/relay/forward.h"

namespace cleave::relay {

struct Settings {
  boost::asio::ip::tcp::endpoint clients;  // where clients connect; port 0: the system chooses
  boost::asio::ip::tcp::endpoint server;   // where the server connects
  std::string secret;
  std::size_t maxPending = 64;                         // clients that wait for the server
  std::size_t maxConnections = 2048;                   // clients in total
  Nanoseconds pendingTime = std::chrono::seconds(10);  // how long a client may wait
  Nanoseconds idleTime = std::chrono::minutes(15);     // how long a pair may be silent
};

class Relay {
 public:
  // Listens immediately, and accepts once the context runs. Throws UsageError "port-in-use",
  // "cannot-bind".
  Relay(boost::asio::io_context& context, const Settings& settings);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  boost::asio::ip::tcp::endpoint clientsEndpoint() const { return clients_.local_endpoint(); }
  boost::asio::ip::tcp::endpoint serverEndpoint() const { return servers_.local_endpoint(); }
  // Resets all connections and stops accepting, so that the context runs out of work.
  void stop();

  bool hasServer() const { return registration_ != nullptr; }
  std::size_t pending() const { return pending_.size(); }
  std::size_t pairs() const { return pairs_.size(); }
  std::uint64_t accepted() const { return accepted_; }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t bytesUp() const { return bytesUp_; }  // of pairs that have ended
  std::uint64_t bytesDown() const { return bytesDown_; }

 private:
  using Tcp = boost::asio::ip::tcp;
  using Events = boost::asio::experimental::channel<void(boost::system::error_code, RelayEvent)>;

  // A client without a connection to the server yet.
  struct Pending {
    SharedSocket socket;
    boost::asio::ip::address address;
    SteadyTime since;
  };
  // The server's control connection.
  struct Registration {
    SharedSocket socket;
    Events events;
    SteadyTime lastPong = now();
    std::string name;
  };

  void admitClient(SharedSocket client);
  void admitServer(SharedSocket socket);
  boost::asio::awaitable<void> check(SharedSocket socket);
  boost::asio::awaitable<void> serveRequest(SharedSocket socket);
  boost::asio::awaitable<void> control(SharedSocket socket);
  boost::asio::awaitable<void> pair(SharedSocket client, SharedSocket server, std::uint64_t number);
  boost::asio::awaitable<void> sendEvents(std::shared_ptr<Registration> registration);
  boost::asio::awaitable<void> readPongs(std::shared_ptr<Registration> registration);
  void announce(std::uint64_t number);
  boost::asio::awaitable<void> look();
  void endOverdue(SteadyTime time);
  void pingServer(SteadyTime time);
  void refuse(const SharedSocket& socket, const std::string& why);

  boost::asio::io_context& context_;
  const Settings settings_;
  Tcp::acceptor clients_;
  Tcp::acceptor servers_;
  boost::asio::steady_timer lookTimer_;
  std::list<SharedSocket> unchecked_;  // connections whose request has not arrived, oldest first
  std::shared_ptr<Registration> registration_;  // null: no server
  std::map<std::uint64_t, Pending> pending_;    // by the client's number
  std::set<std::shared_ptr<Pair>> pairs_;
  std::uint64_t accepted_ = 0;  // clients
  std::uint64_t refused_ = 0;   // connections
  std::uint64_t bytesUp_ = 0;
  std::uint64_t bytesDown_ = 0;
  SteadyTime pingAt_ = now();
  SteadyTime refusalLoggedAt_;
  bool stopped_ = false;
};

}  // namespace cleave::relay
