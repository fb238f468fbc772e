// The sending half of a tensor link: encodes tensors, queues them at the connection, and keeps them
// until they are settled: written, and acknowledged by the peer. If the connection breaks,
// unsettled tensors are sent again over the next one.
//
// Tensors of the codec `none` bypass the codec queue and are never copied: the socket reads
// directly from the stage's memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/engine/messages.h"
#include "common/link/arrived.h"
#include "common/link/codec_tasks.h"
#include "common/link/connection_slot.h"
#include "common/link/tensor_link_options.h"
#include "common/link/transfer_log.h"
#include "common/link/transfer_order.h"
#include "common/resources/memory_account.h"

namespace cleave {

struct ReceivedReport;

class TensorSender : public std::enable_shared_from_this<TensorSender> {
 public:
  // Must exist while the connection runs.
  TensorSender(std::shared_ptr<const TensorLinkOptions> options,
               std::shared_ptr<ConnectionSlot> slot, std::shared_ptr<CodecTasks> codecTasks,
               std::shared_ptr<TransferOrder> order, std::shared_ptr<TransferLog> log);

  // Any thread. These functions never wait. They throw the errors of MemoryAccount::charge().
  void sendTensor(TensorMessage&& message);
  void sendBlob(Blob&& blob);

  // io thread; server. Answers a Fetch of trace/body. Returns false for other flows, which the
  // engine answers with sendBlob(). Throws ProtocolError "too-many-in-flight" if the last answer
  // has not been settled, and "unexpected-message" if there is no trace.
  bool answer(const Fetch& fetch);
  // io thread. Call when the peer has acknowledged the tensor. Throws the errors of
  // TransferLog::acknowledged().
  void acknowledged(const ReceivedReport& report);
  // io thread. Call after a connection was attached: sends again what the peer has not received.
  // Throws ProtocolError "bad-arrived" if the peer claims to have received something that was not
  // sent, or to lack something that it acknowledged.
  void resume(const Arrived& peer);

 private:
  // An encoded tensor, ready to be sent.
  struct Encoding {
    TensorMessage message;  // without its payload, unless the codec is `none`
    TensorSpec spec;
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
    double encodeSeconds = 0;
    std::optional<double> snrDb;
    std::string sha256;  // blobs only
    std::string codec;
    CodecLevel level = CodecLevel::own;
    MemoryCharge charge;  // charge for a stage's output; the pool charges its buffers itself
    std::shared_ptr<std::uint64_t> wireBytes = std::make_shared<std::uint64_t>(0);
    std::uint64_t written = 0;  // bytes that at least one connection has accepted
    unsigned connections = 0;   // number of connections so far, when it was queued
    bool isReleased = false;    // see release()
    bool isAwaited = false;     // a blob, see Blob
  };

  MemoryCharge chargeFor(const TensorView& view) const;
  // codec queue
  void encode(TensorCodecs& codecs, TensorMessage&& message, CodecLevel level);
  // any thread
  void queueOnIo(std::shared_ptr<Encoding> encoding);
  // io thread
  void sendTrace();
  void queue(const std::shared_ptr<Encoding>& encoding);
  // `begin`: the first byte that the peer lacks.
  void send(const std::shared_ptr<Encoding>& encoding, std::uint64_t begin);
  OutgoingTensor outgoing(const std::shared_ptr<Encoding>& encoding, std::uint64_t begin);
  void checkArrived(const Arrived& peer) const;
  void arrived(const std::shared_ptr<Encoding>& encoding);
  static void drop(Encoding& encoding);
  std::string openMetadata(const Encoding& encoding, std::uint64_t begin,
                           double queueSeconds) const;
  bool release(const Key& key);
  void settleReleased();
  void settle(const Key& key);

  const std::shared_ptr<const TensorLinkOptions> options_;
  const std::shared_ptr<ConnectionSlot> slot_;
  const std::shared_ptr<CodecTasks> codecTasks_;
  const std::shared_ptr<TransferOrder> order_;
  const std::shared_ptr<TransferLog> log_;
  // io thread
  std::deque<std::shared_ptr<Encoding>> unsettled_;  // in queueing order
  FlowMap<std::uint64_t> settled_;                   // number of settled tensors
  FlowMap<std::uint64_t> late_;  // of those, how many the peer has not acknowledged yet
  bool blobUnderWay_ = false;    // server: a Fetch is unanswered, or its answer is not settled
};

}  // namespace cleave
