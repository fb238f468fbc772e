// The tensor link: joins codecs and a connection into the interface that an engine uses. Encodes,
// sends, receives, checks, decodes, counts credits, and reports every transfer.
//
// clang-format off
//   device thread   send(), commit(): post to the others, never wait
//   codec queue     encode, decode, digests
//   io thread       frames, streams, credits
// clang-format on
//
// Tensors of the codec `none` bypass the codec queue and are never copied: the socket reads from
// the stage's own memory, and writes into memory that the stage computes on.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/core/buffer.h"
#include "common/core/clock.h"
#include "common/engine/messages.h"
#include "common/engine/schedule.h"
#include "common/engine/trace.h"
#include "common/link/incoming_tensors.h"
#include "common/link/tensor_codecs.h"
#include "common/link/transfer_order.h"
#include "common/link/transfers.h"
#include "common/net/connection.h"

namespace cleave {

struct ReceivedReport;

struct TensorLinkOptions : TensorCodecOptions {
  Role role = Role::client;
  Place place;  // of the body at the server's end
  std::uint32_t microBatches = 1;
  std::uint32_t inFlight = 1;
  std::uint32_t maxBatch = 1;
  // The negotiated spec of a flow's tensor with `samples` samples.
  std::function<TensorSpec(Flow flow, std::uint32_t samples)> spec;
  int (*priority)(Flow flow, const Place& body) = nullptr;
  std::uint64_t maxBlobBytes = 0;  // maximum size of weights/body or grads/body
  bool initialWeights = false;     // the client may send weights/body, once
  // Null: no trace. On the server, the link answers a Fetch of trace/body from it.
  std::shared_ptr<TraceRecorder> trace;
};

class TensorLink : public EngineLink,
                   public FrameSink,
                   public std::enable_shared_from_this<TensorLink> {
 public:
  // `deliver` and `record` are called on the io thread or in the codec queue. `record` must not
  // block.
  TensorLink(TensorLinkOptions options, std::shared_ptr<Connection> connection,
             std::shared_ptr<BufferPool> pool, boost::asio::any_io_executor io,
             std::function<void(Message)> deliver,
             std::function<void(const TransferRecord&)> record);

  void send(Message message) override;
  void commit() override;

  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override;
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

  // Any thread.
  LinkTotals totals() const;
  // Any thread: whether tensors are being encoded or decoded here, or waiting for it.
  bool hasCodecWork() const { return codecWork_ > 0; }
  // io thread, after the connection has ended: records the tensors that were sent but not
  // acknowledged.
  void recordUnacknowledged();

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
    MemoryCharge charge;  // for a stage's output; the pool's buffers have their own
  };
  struct Pending {  // sent, until it is both written and acknowledged
    TransferRecord record;
    bool written = false;
    bool acknowledged = false;
  };

  // device thread or codec queue
  void sendTensor(TensorMessage&& message);
  MemoryCharge chargeFor(const TensorView& view) const;
  void sendBlob(Blob&& blob);
  void sendControl(FrameKind kind, std::string metadata);
  void encode(TensorMessage&& message);
  void failLater(std::exception_ptr error);
  void trace(TraceActivity activity, const Key& key, SteadyTime begin, SteadyTime end) const {
    if (options_.trace) options_.trace->moved(activity, key, begin, end);
  }
  template <typename Function>
  void onIo(Function function);
  template <typename Function>
  void inCodecQueue(Function function);

  // io thread
  void queue(const std::shared_ptr<Encoding>& encoding);
  std::string openMetadata(const Encoding& encoding, double queueSeconds) const;
  void receivedFetch(std::span<const std::byte> metadata);
  void sendTrace();
  void finishTensor(IncomingTensor&& tensor);
  void receivedReport(const ReceivedReport& report);
  void settle(const Key& key);

  // any thread: calls `done` in the codec queue
  class BlobDigest;
  void digest(std::span<const std::byte> bytes, std::function<void(std::string sha256)> done);
  void digestOn(const std::shared_ptr<BlobDigest>& digest,
                std::function<void(std::string sha256)> done);

  // codec queue
  void decode(IncomingTensor&& tensor, double wireSeconds);
  void verifyBlob(IncomingTensor&& tensor, const std::string& sha256, double wireSeconds);
  // io thread or codec queue: a tensor is complete. Reports it to the peer before the engine
  // receives it, so that the sender gets its credit back before anything that the engine sends
  // next.
  void deliverTensor(IncomingTensor&& tensor, Payload payload, double wireSeconds,
                     double decodeSeconds);
  void acknowledge(const IncomingTensor& tensor, double wireSeconds, double decodeSeconds);
  void account(const TransferRecord& record);

  const TensorLinkOptions options_;
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<BufferPool> pool_;
  const boost::asio::any_io_executor io_;
  const std::function<void(Message)> deliver_;
  const std::function<void(const TransferRecord&)> record_;

  // io thread
  TransferOrder order_;
  IncomingTensors incoming_;
  std::map<Key, Pending> pending_;
  bool blobUnderWay_ = false;  // server: a Fetch is unanswered, or its answer not settled

  TensorCodecs codecs_;                     // codec queue
  std::atomic<std::size_t> codecWork_ = 0;  // functions queued or running

  mutable std::mutex totalsMutex_;
  LinkTotals totals_;
  double codecSecondsReported_ = 0;
};

}  // namespace cleave
