// The connection that a tensor link uses at the moment. The link's parts reach it only through this
// class, and run their work on its io thread here. Any thread unless stated otherwise.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/net/connection.h"

namespace cleave {

class ConnectionSlot : public std::enable_shared_from_this<ConnectionSlot> {
 public:
  ConnectionSlot(std::shared_ptr<Connection> connection, boost::asio::any_io_executor io)
      : connection_(std::move(connection)), io_(std::move(io)) {}

  // Calls `function` on the io thread: immediately if this is the io thread, so that two calls from
  // there keep their order. An exception from it ends the connection, which reports it to its
  // owner. Whatever `function` uses must be owned by it.
  template <typename Function>
  void onIo(Function function) {
    boost::asio::dispatch(io_,
                          [self = shared_from_this(), function = std::move(function)]() mutable {
                            try {
                              function();
                            } catch (...) {
                              self->connection_->fail(std::current_exception());
                            }
                          });
  }
  // Calls `task`, which must not throw, later on the io thread.
  void post(std::function<void()> task);
  // Ends the connection with this error.
  void fail(std::exception_ptr error);
  void sendControl(FrameKind kind, std::string metadata);
  // io thread
  void sendTensor(OutgoingTensor tensor);

  // See Connection.
  ByteCounts bytes() const { return connection_->bytes(); }
  LinkInfo linkInfo() const { return connection_->linkInfo(); }
  double sendRate() const { return connection_->sendRate(); }
  double receiveRate() const { return connection_->receiveRate(); }
  double peakSent() const { return connection_->peakSent(); }
  double peakReceived() const { return connection_->peakReceived(); }

 private:
  const std::shared_ptr<Connection> connection_;
  const boost::asio::any_io_executor io_;
};

}  // namespace cleave
