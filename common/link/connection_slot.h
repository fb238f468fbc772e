// Holds the connection that a tensor link currently uses, if there is one. The link's parts reach
// it only through this class, and run their work on its io thread here. Any thread unless stated
// otherwise.
//
// Control frames are kept until the peer confirms them. If a connection breaks, they are sent again
// over the next one.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/core/progress_clock.h"
#include "common/net/connection.h"

namespace cleave {

class ConnectionSlot : public std::enable_shared_from_this<ConnectionSlot> {
 public:
  // Maximum control frames that the peer has not confirmed. Each side confirms them with every
  // tensor that it receives, and a step has a few per tensor.
  static constexpr std::size_t kMaxUnconfirmed = 4096;

  // `failed` is called on the io thread with an error that occurs while there is no connection.
  // `progress`: see TensorLinkOptions.
  ConnectionSlot(boost::asio::any_io_executor io, std::function<void(std::exception_ptr)> failed,
                 std::shared_ptr<ProgressCount> progress)
      : io_(std::move(io)), failed_(std::move(failed)), progress_(std::move(progress)) {}

  // Calls `function` on the io thread; immediately if this is the io thread, so that calls from
  // there keep their order. If it throws, the exception is passed to fail(). `function` must own
  // everything that it uses.
  template <typename Function>
  void onIo(Function function) {
    boost::asio::dispatch(io_,
                          [self = shared_from_this(), function = std::move(function)]() mutable {
                            try {
                              function();
                            } catch (...) {
                              self->fail(std::current_exception());
                            }
                          });
  }
  // Calls `task`, which must not throw, later on the io thread.
  void post(std::function<void()> task);
  // Ends the connection with this error.
  void fail(std::exception_ptr error);
  // If kMaxUnconfirmed frames are unconfirmed, fails with ProtocolError "not-reading" on the io
  // thread.
  void sendControl(FrameKind kind, std::string metadata);

  // io thread. Uses `connection` from now on. `confirmed`: number of control frames that the peer
  // has received; the others are sent again. Throws ProtocolError "bad-arrived" if that number is
  // impossible.
  void attach(std::shared_ptr<Connection> connection, std::uint64_t confirmed);
  // io thread. Stops using the connection.
  void detach();
  // io thread. Without a connection, does nothing: TensorSender sends the tensor again.
  void sendTensor(OutgoingTensor tensor);
  // io thread. `count`: number of control frames that the peer has received.
  void confirmControl(std::uint64_t count);

  // Call when a control frame from the peer has been handled.
  void countControl() { ++received_; }
  std::uint64_t controlReceived() const { return received_; }

  // Call for each byte of a tensor that has crossed for the first time, and for each step.
  void countProgress(std::uint64_t count) {
    if (progress_) *progress_ += count;
  }

  // Null without a connection.
  std::shared_ptr<Connection> connection() const;
  // Totals of all connections so far.
  ByteCounts bytes() const;
  double peakSent() const;
  double peakReceived() const;
  // The clock sample of the current connection; before its first Pong, that of the previous one.
  ClockSample clock() const;
  // The number of connections that replaced a broken one, and the total seconds without a
  // connection.
  std::uint64_t reconnects() const;
  double offlineSeconds() const;
  // Values of the current connection, see Connection; unknown without a connection.
  std::optional<LinkInfo> linkInfo() const;
  double sendRate() const;
  double receiveRate() const;

 private:
  struct ControlFrame {
    FrameKind kind;
    std::string metadata;
  };
  void drop(std::uint64_t confirmed);
  void queue(const ControlFrame& frame);

  const boost::asio::any_io_executor io_;
  const std::function<void(std::exception_ptr)> failed_;
  const std::shared_ptr<ProgressCount> progress_;
  std::deque<ControlFrame> unconfirmed_;  // io thread
  std::uint64_t confirmed_ = 0;  // io thread: number of frames already removed from unconfirmed_
  std::atomic<std::uint64_t> received_ = 0;

  mutable std::mutex mutex_;
  std::shared_ptr<Connection> connection_;
  ByteCounts pastBytes_;  // bytes of earlier connections
  double pastPeakSent_ = 0, pastPeakReceived_ = 0;
  ClockSample pastClock_;
  std::uint64_t reconnects_ = 0;
  double offlineSeconds_ = 0;
  std::optional<SteadyTime> offlineSince_;  // nullopt before the first connection
};

}  // namespace cleave
