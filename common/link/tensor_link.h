// The tensor link combines codecs and a connection into the interface that an engine uses. It
// outlives a connection: if one breaks, another one is attached, and each side sends what the other
// has not received. The engines at both ends receive the same messages in the same order as over a
// single connection.
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
//
// A link connects a server with its client or, as an edge, with the server of a neighbouring body.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/engine/messages.h"
#include "common/link/incoming_samples.h"
#include "common/link/tensor_link_options.h"
#include "common/link/tensor_receiver.h"
#include "common/link/tensor_sender.h"
#include "common/link/transfers.h"
#include "common/net/connection.h"
#include "common/resources/buffer.h"

namespace cleave {

class TensorLink : public EngineLink, public FrameSink {
 public:
  // They may be called after the link has been destroyed, until all tasks that it has posted have
  // run.
  struct Callbacks {
    std::function<void(Message)> deliver;               // on the io thread or in the codec queue
    std::function<void(const TransferRecord&)> record;  // on the io thread; must not block
    std::function<void(std::exception_ptr)> failed;     // on the io thread: see fail()
  };
  // Starts without a connection: everything that is sent waits for attach().
  TensorLink(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
             boost::asio::any_io_executor io, Callbacks callbacks);

  // io thread. Uses this connection from now on; requires that there is none. `peer`: counts of
  // what has arrived at the other end; the rest is sent. Throws ProtocolError "bad-arrived" if
  // these counts are impossible.
  void attach(std::shared_ptr<Connection> connection, const Arrived& peer);
  // io thread. Serves the connection until it ends; see Connection::run(). The link must exist
  // until then.
  boost::asio::awaitable<std::string> serve();
  // io thread. Stops using the connection, if there is one, and delivers no more of its messages.
  // The caller must close the connection before or immediately afterwards.
  void detach();
  // io thread, after detach().
  Arrived arrived() const;

  // Any thread. Ends the connection with this error; without a connection, passes the error to
  // Callbacks::failed.
  void fail(std::exception_ptr error) { slot_->fail(std::move(error)); }
  // Any thread. Null if there is none.
  std::shared_ptr<Connection> connection() const { return slot_->connection(); }

  void send(Message message) override;
  void commit(std::uint64_t step) override {
    codecTasks_->post([step](TensorCodecs& codecs) { codecs.commit(step); });
  }
  // Any thread; client. Call before the first tensor of each training batch, with its sample
  // numbers (indices in the training data). Sends them to the server if a codec of the run keeps
  // samples.
  void sendSamples(std::uint64_t step, const std::vector<std::uint32_t>& numbers);

  // Any thread, after commit(): passes copies of the codecs' states to `saved`, in the codec queue.
  // `since`: see TensorCodecs::save(). If it fails, the link continues.
  void saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved);
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
  // Any thread. Codec seconds on this side since the last call, or since the last BodyDone that was
  // sent over this link.
  double takeCodecSeconds() { return log_->takeCodecSeconds(); }
  // Any thread. Whether tensors are being encoded or decoded here, or are waiting for that.
  bool hasCodecWork() const { return codecTasks_->any(); }
  // Any thread. See Connection; 0 without one.
  double sendRate() const { return slot_->sendRate(); }
  double receiveRate() const { return slot_->receiveRate(); }
  // Any thread. See Connection. Before the first Pong of a connection, returns the sample of the
  // previous one.
  ClockSample clock() const { return slot_->clock(); }
  // Any thread. Whether tensors of the flow cross this link.
  bool carries(Flow flow) const { return place_.contains(flow) && !elsewhere_.get(flow); }
  // io thread, after the connection has ended: records the tensors that were sent but not
  // acknowledged.
  void recordUnacknowledged() { log_->recordUnacknowledged(); }

 private:
  class Gate;
  void receivedControl(FrameKind kind, std::span<const std::byte> metadata);
  void deliverStep(Message message);
  void confirmControl();

  // Whether control frames may arrive for a long time while no tensor does, whose Received would
  // confirm them: the tensors cross another link.
  bool mayLackTensors() const { return !elsewhere_.empty(); }

  const Role role_;
  const Place place_;
  const FlowMap<bool> elsewhere_;
  const bool isEdge_;
  const bool isCohort_;
  const bool needsSamples_;  // a codec keeps samples
  const std::function<void(Message)> deliver_;
  const std::shared_ptr<ConnectionSlot> slot_;
  const std::shared_ptr<TransferLog> log_;
  std::shared_ptr<CodecTasks> codecTasks_;
  std::shared_ptr<TensorSender> sender_;
  std::shared_ptr<TensorReceiver> receiver_;
  IncomingSamples samples_;     // io thread
  std::shared_ptr<Gate> gate_;  // the gate of the current connection
};

}  // namespace cleave
