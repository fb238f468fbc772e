// The client's link to one of the run's servers: connects, carries the tensors and messages of that
// server's body, and connects again if the connection breaks.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/run/connect.h"
#include "common/checkpoint/run_connections.h"
#include "common/core/error.h"
#include "common/core/progress_clock.h"
#include "common/link/tensor_link.h"
#include "common/net/streams/io_thread.h"
#include "common/resources/buffer.h"

namespace cleave {

struct ConnectOptions {
  double retrySeconds = 0;  // how long the first connection is retried, with back-off
  // How long to retry if the connection breaks later, counted from the first break since the run's
  // last progress; 0: the run then ends.
  double reconnectSeconds = 0;
  double progressSeconds = 0;  // how long to wait without progress over connections; 0: forever
  bool isRestart = false;      // the first connection is retried after all connection faults
  // Called on the io thread before each Hello to this server: adds it to the client's connections
  // of the run (addHello()), and returns them. If it is empty, each link has its own, in memory.
  std::function<RunConnections(std::size_t server)> nextHello = nullptr;
  // Called on the io thread when the server has accepted the Hello; may be empty.
  std::function<void(std::size_t server)> accepted = nullptr;
  // Called on the device thread after a connection fault that ends the run; may be empty. Throws
  // the cause if it is known here, such as the end of a server that this process has started.
  std::function<void()> findCause = nullptr;
};

// A server's address, and the Hello for it.
struct ServerRequest {
  ServerAddress address;
  wire::Hello hello;
  std::size_t number = 0;  // of the server in this run, from 0
};

// The error with which a run ends if the server sends Bye with this reason.
RunError endedByServer(const std::string& reason);

class ServerLink {
 public:
  // The io thread is borrowed. `progress`: that of all links of the run.
  ServerLink(IoThread& io, ServerRequest request, const ConnectOptions& options,
             std::shared_ptr<ProgressCount> progress);

  // Any thread; call once. Connects and shakes hands. Calls `done` on the io thread, with the error
  // if that failed: see connectToServer().
  void connect(std::function<void(std::exception_ptr error)> done);
  // After connect().
  const wire::HelloOk& answer() const { return ok_; }
  const ServerAddress& address() const { return address_; }
  // Any thread. Instead of start(): ends the connection if there is one, with Bye, within 2 s.
  // Calls `done` on the io thread.
  void leave(std::function<void()> done);
  // After connect(): whether the run continues from a checkpoint.
  bool resumes() const { return ok_.available_size() > 0; }

  // `deliver` is called on the io thread or in the codec queue, the others on the io thread.
  struct Callbacks {
    std::function<void(Message)> deliver;
    std::function<void(const TransferRecord&)> record;
    std::function<void(std::uint64_t session, std::uint64_t generation)> reconnected;
    std::function<void(std::exception_ptr error)> ended;  // once; null: after Bye
  };
  // After connect(), on the same thread; call once. Serves the connection, and those that replace
  // it, until the run ends.
  void start(TensorLinkOptions options, std::shared_ptr<BufferPool> pool, Callbacks callbacks);

  // After start().
  TensorLink& tensors() { return *link_; }
  const TensorLink& tensors() const { return *link_; }
  const std::shared_ptr<TensorLink>& sharedTensors() const { return link_; }
  // Any thread. Sends a Ping if there is a connection; its Pong measures the round trip.
  void ping();
  // Any thread, after start(). Whether there is a connection.
  bool isConnected() const { return link_->connection() != nullptr; }
  // Any thread. Sends Bye, which ends the link.
  void sayBye(const std::string& reason);
  // Returns the number of frames that wait to be sent; nullopt if the io thread does not answer in
  // time. Waits for the io thread, so call it on another thread.
  std::optional<std::size_t> queuedFrames() const;

 private:
  boost::asio::awaitable<void> sayByeTo(std::shared_ptr<Connection> connection);
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<OpenConnection> reconnect(const Error& broken);
  boost::asio::awaitable<double> reconnectSecondsLeft(const Error& broken);
  bool mayReconnect(const Error& error) const;
  wire::Hello nextHello();
  const wire::Hello& numberedHello();
  void wasAccepted();
  void accept(OpenConnection open);
  void end(std::exception_ptr error);

  IoThread& io_;
  const ServerAddress address_;
  const std::size_t number_;
  const ConnectOptions options_;
  const std::shared_ptr<ProgressCount> progress_;
  // The members below are used on the io thread, and before start() by the caller of connect().
  wire::Hello hello_;  // of the latest attempt to connect
  wire::HelloOk ok_;   // the answer to the first Hello
  RunConnections connections_;
  std::optional<ProgressClock> brokenSince_;  // set by the first break
  unsigned breaks_ = 0;                       // since the last progress
  bool isClosing_ = false;
  bool hasEnded_ = false;
  std::shared_ptr<Connection> connection_;  // between connect() and serve()
  std::shared_ptr<TensorLink> link_;
  Callbacks callbacks_;
};

}  // namespace cleave
