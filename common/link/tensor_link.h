// The tensor link: joins codecs and a connection into the interface that an engine uses. It
// outlives the connection: if that breaks, another one is attached, and each side sends what the
// other lacks. The engines at both ends see the same messages in the same order as over one
// connection.
//
// clang-format off
//   device thread   send(), commit(): post to the others, never wait
//   codec queue     encode, decode, digests
//   io thread       frames, streams, credits
//
//   TensorSender     encode, queue           TensorReceiver   place, decode, deliver
//   TransferOrder    credits                 TransferLog      records, totals
//   CodecTasks       the codec queue         ConnectionSlot   the connection
// clang-format on
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/core/buffer.h"
#include "common/engine/messages.h"
#include "common/link/tensor_link_options.h"
#include "common/link/tensor_receiver.h"
#include "common/link/tensor_sender.h"
#include "common/link/transfers.h"
#include "common/net/connection.h"

namespace cleave {

class TensorLink : public EngineLink, public FrameSink {
 public:
  // Called until what the link has posted has run, which may be after its destruction.
  struct Callbacks {
    std::function<void(Message)> deliver;               // on the io thread or in the codec queue
    std::function<void(const TransferRecord&)> record;  // on the io thread; must not block
    std::function<void(std::exception_ptr)> failed;     // on the io thread: see fail()
  };
  // Starts without a connection: everything sent waits for attach().
  TensorLink(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
             boost::asio::any_io_executor io, Callbacks callbacks);

  // io thread. Uses this connection from now on; requires that there is none. `peer`: what has
  // arrived at the other end; the rest is sent. Throws ProtocolError "bad-arrived" if that is
  // impossible.
  void attach(std::shared_ptr<Connection> connection, const Arrived& peer);
  // io thread. Serves the connection until it ends; see Connection::run(). The link must exist
  // until then.
  boost::asio::awaitable<std::string> serve();
  // io thread. Stops using the connection, if there is one: nothing more of it is delivered. The
  // caller must have closed it, or close it now.
  void detach();
  // io thread, after detach().
  Arrived arrived() const;

  // Any thread. Ends the connection with this error; without one, passes it to Callbacks::failed.
  void fail(std::exception_ptr error) { slot_->fail(std::move(error)); }
  // Any thread. Null if there is none.
  std::shared_ptr<Connection> connection() const { return slot_->connection(); }

  void send(Message message) override;
  void commit() override {
    codecTasks_->post([](TensorCodecs& codecs) { codecs.commit(); });
  }

  // Any thread, after commit(): passes copies of the codecs' states to `saved`, in the codec queue.
  void saveCodecs(std::function<void(std::vector<TensorCodecs::SavedState>)> saved);
  // Any thread, before anything is sent: replaces the codecs' states. If they do not fit, the
  // connection ends with "bad-checkpoint".
  void restoreCodecs(std::vector<TensorCodecs::SavedState> states);

  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override {
    return receiver_->place(header, metadata);
  }
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

  // Any thread.
  LinkTotals totals() const;
  // Any thread: whether tensors are being encoded or decoded here, or waiting for it.
  bool hasCodecWork() const { return codecTasks_->any(); }
  // Any thread. See Connection; 0 without one.
  double sendRate() const { return slot_->sendRate(); }
  double receiveRate() const { return slot_->receiveRate(); }
  // Any thread. See Connection; before the first Pong of a connection, that of the last one.
  ClockSample clock() const { return slot_->clock(); }
  // io thread, after the connection has ended: records the tensors that were sent but not
  // acknowledged.
  void recordUnacknowledged() { log_->recordUnacknowledged(); }

 private:
  class Gate;
  void receivedControl(FrameKind kind, std::span<const std::byte> metadata);

  const Role role_;
  const std::function<void(Message)> deliver_;
  const std::shared_ptr<ConnectionSlot> slot_;
  const std::shared_ptr<TransferLog> log_;
  std::shared_ptr<CodecTasks> codecTasks_;
  std::shared_ptr<TensorSender> sender_;
  std::shared_ptr<TensorReceiver> receiver_;
  std::shared_ptr<Gate> gate_;  // of the connection
};

}  // namespace cleave
