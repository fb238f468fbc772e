// One client's place at a served run: its link, and the connection that the link uses. A session is
// one connection; a seat lasts as long as its run. If its connection breaks, it is parked until the
// client's next connection continues it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/link/tensor_link.h"
#include "common/net/connection.h"
#include "proto/wire.pb.h"
#include "server/run/admission.h"
#include "server/run/run_request.h"
#include "server/run/run_resources.h"
#include "server/status/status.h"
#include "server/store/last_connection.h"

namespace cleave {

class ServedRun;

// io thread. Owned by its run.
class Seat {
 public:
  // `number`: that of its member in a cohort; else 0. `ticket`: the run's in its
  // first seat, and that of its member in the others. `failed` is called on the io thread with the
  // error that ends the run while this seat is parked.
  Seat(ServedRun& run, const RunResources& resources, std::uint32_t number, RunRequest request,
       std::unique_ptr<Admission::Ticket> ticket, std::function<void(std::exception_ptr)> failed);

  // ---- For its run ----

  // In a cohort, its member's number; else 0.
  std::uint32_t number() const { return number_; }
  // The run has stored this connection. Throws the errors of throwIfEnded().
  void stored(const LastConnection& connection);
  // Call once; the other functions below require it, except those that say otherwise.
  void open(std::shared_ptr<TensorLink> link) { link_ = std::move(link); }
  // Null before open().
  const std::shared_ptr<TensorLink>& link() const { return link_; }
  // Called if the link fails without a connection.
  const std::function<void(std::exception_ptr)>& failed() const { return failed_; }
  // Stops waiting for the client.
  void close() {
    if (parked_) parked_->timer.cancel();
  }

  // ---- For a session ----

  // Stores the connection of a Hello that continues the run, before it is attached.
  // `hello` must outlive the call. Throws RunError "stale-generation".
  boost::asio::awaitable<void> storeConnection(const wire::Hello& hello);
  // Uses this connection from now on, and closes the previous one. `request`: the request received
  // over the new connection: the admitted one, or one that continues the run. Throws ProtocolError
  // "bad-arrived".
  void attach(const RunRequest& request, std::shared_ptr<Connection> connection);
  // Serves the connection until it ends. Returns the reason of the client's Bye, or throws the
  // error that ended the connection.
  boost::asio::awaitable<std::string> serve();
  // Call when the connection has broken. Waits for another one for ServedRun::patience(); then the
  // run ends.
  void park();

  // ---- Without open() ----

  // Ends the run with this error, which is sent to the client if it is connected; before open(),
  // only the seat.
  void end(std::exception_ptr error);
  // Call if its link has failed while it had no connection. The seat can then no longer be taken.
  void failedUnconnected(std::exception_ptr error) { endError_ = std::move(error); }
  // Whether end() was called before open(), or failedUnconnected() was called.
  bool hasEnded() const { return endError_ != nullptr; }
  // Throws the error of an earlier end() without open(), or of failedUnconnected().
  void throwIfEnded() const {
    if (endError_) std::rethrow_exception(endError_);
  }
  bool isParked() const { return parked_.has_value(); }
  // Requires isParked().
  SteadyTime parkedSince() const { return parked_->since; }

  ServedRun& run() const { return run_; }
  // The request that was admitted.
  const RunRequest& request() const { return request_; }
  // The number of the session that serves it, or did so last.
  std::uint64_t session() const { return session_; }
  // A random number, never 0. A Hello with this token continues the run.
  std::uint64_t token() const { return token_; }
  // The connection that was stored last, or that will be stored first.
  const LastConnection& lastConnection() const { return last_; }
  // What had arrived before the last attach(); nullopt before the second one.
  const std::optional<Arrived>& arrived() const { return arrived_; }
  // For the operator; `kind` and `seconds` only if it is parked.
  SessionStatus status() const;

 private:
  struct Parked {
    SteadyTime since;
    boost::asio::steady_timer timer;
  };

  ServedRun& run_;
  const RunResources& resources_;
  const RunRequest request_;
  const std::uint32_t number_;
  const std::unique_ptr<Admission::Ticket> ticket_;
  const std::function<void(std::exception_ptr)> failed_;
  const std::uint64_t token_;
  LastConnection last_;  // of a trial: none
  std::uint64_t session_;
  std::optional<Arrived> arrived_;
  std::shared_ptr<TensorLink> link_;
  std::optional<Parked> parked_;
  std::exception_ptr endError_;  // see hasEnded()
};

}  // namespace cleave
