// One end of an edge: the direct link between this run's server and the server of a neighbouring
// body. The server of the earlier body connects when it has the first tensor to send, because the
// client has then asked both servers for the edge; the other one accepts. If the connection breaks,
// another one replaces it, as with a client.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/core/endpoint.h"
#include "common/core/error.h"
#include "common/link/tensor_link.h"
#include "common/net/connection.h"
#include "common/net/connection_options.h"
#include "proto/wire.pb.h"
#include "server/access/server_certificates.h"

namespace cleave {

// Where to connect to, and as what.
struct EdgeTarget {
  Endpoint address;
  std::string runId;  // of the other server's run
};

struct RunEdgeOptions {
  std::string token;                 // kEdgeTokenBytes, known to both servers and the client
  std::optional<EdgeTarget> target;  // nullopt: the other server connects
  ConnectionOptions connection;
  const ServerCertificates* certificates = nullptr;
  // How long to reconnect after the connection has broken; then the run ends.
  std::chrono::milliseconds patience{0};
};

// Owned by a shared_ptr. io thread, unless stated otherwise.
class RunEdge : public std::enable_shared_from_this<RunEdge> {
 public:
  // `failed` is called with the error that must end the run, not after close().
  RunEdge(RunEdgeOptions options, boost::asio::any_io_executor io,
          std::function<void(const RunError&)> failed)
      : options_(std::move(options)), io_(io), failed_(std::move(failed)) {}

  // Call once, before everything else. The options are those of the edge.
  void start(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
             std::function<void(Message)> deliver,
             std::function<void(const TransferRecord&)> record);

  // Any thread, after start().
  TensorLink& tensors() { return *link_; }
  const TensorLink& tensors() const { return *link_; }
  void send(TensorMessage message);
  // Any thread, once per step, on one thread: measurements since the last call.
  EdgeReport report();

  // Whether this is the edge's token. The time that it takes does not depend on the bytes.
  bool hasToken(const std::string& token) const;
  // Uses this connection, which the other server has opened, from now on, and closes the previous
  // one. `peer`: what has arrived there. Completes `ok` and sends it. Throws ProtocolError
  // "bad-arrived"; otherwise, serve() must follow.
  boost::asio::awaitable<void> accept(std::shared_ptr<Connection> connection, const Arrived& peer,
                                      wire::HelloOk ok);
  // Serves an accepted connection until it ends or is replaced. Throws the Error that ended it. If
  // that is a fault that was found on this side, the run fails.
  boost::asio::awaitable<void> serve(std::shared_ptr<Connection> connection);

  // Says Bye, and connects no more. Keeps `held` while coroutines use the link.
  void close(std::shared_ptr<const void> held);
  // When something other than a Ping last crossed; nullopt without a connection.
  std::optional<SteadyTime> lastActivity() const;

 private:
  std::shared_ptr<void> countServing();
  void startConnecting();
  boost::asio::awaitable<void> keepConnected();
  boost::asio::awaitable<std::shared_ptr<Connection>> connect();
  boost::asio::awaitable<void> serveOnce(std::shared_ptr<Connection> connection);
  Arrived attach(std::shared_ptr<Connection> connection, const Arrived& peer);
  void detach();
  std::uint64_t tensorsCrossed() const;
  void fail(const Error& error);
  std::string peerName() const;
  bool isOverdue() const;

  const RunEdgeOptions options_;
  const boost::asio::any_io_executor io_;
  std::function<void(const RunError&)> failed_;  // empty after close()
  boost::asio::cancellation_signal stop_;        // of what keepConnected() waits for
  std::shared_ptr<TensorLink> link_;
  std::weak_ptr<Connection> connecting_;  // the latest one that was opened here
  std::string peer_;                      // of the latest connection
  std::atomic<bool> isNeeded_ = false;    // a tensor was sent
  // When the first tensor began to wait, or the last connection that worked broke.
  SteadyTime waitingSince_;
  bool wasConnected_ = false;
  bool isClosed_ = false;             // this run or the other one has ended
  int serving_ = 0;                   // coroutines that use the link
  std::shared_ptr<const void> held_;  // see close()
  LinkTotals reported_;
};

}  // namespace cleave
