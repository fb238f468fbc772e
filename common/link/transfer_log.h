// Keeps track of a link's transfers: the sent tensors that are not settled, a record per transfer,
// and totals. io thread unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "common/engine/schedule.h"
#include "common/link/transfers.h"
#include "common/net/frame_stream.h"
#include "common/topology/key.h"

namespace cleave {

struct ReceivedReport;

class TransferLog {
 public:
  // `record` is called on the io thread for each transfer, and must not block.
  TransferLog(Role role, std::uint32_t inFlight, std::function<void(const TransferRecord&)> record)
      : role_(role), maxPending_(maxWaiting(inFlight)), record_(std::move(record)) {}

  // ---- Sent tensors: queued, started, written and acknowledged, settled ----

  // Whether queued() would throw.
  bool isFull() const { return pending_.size() >= maxPending_; }
  // Whether the tensor was queued and is not settled.
  bool isPending(const Key& key) const { return pending_.contains(key); }
  // False: the tensor is pending, and not all of it was written to its latest connection.
  bool isWritten(const Key& key) const {
    const auto found = pending_.find(key);
    return found == pending_.end() || found->second.written;
  }
  // Begins a record. Throws ProtocolError "too-many-in-flight" if the number of unacknowledged
  // tensors is far above what the peer's credits allow.
  void queued(TransferRecord record);
  // Call when the first segment is passed to the socket.
  void begun(const Key& key, double queueSeconds);
  // written() and acknowledged() return whether the tensor has now been both written and
  // acknowledged; if so, call settle().
  bool written(const Key& key, std::uint64_t wireBytes);
  // Call when the tensor will be sent again over another connection.
  void sentAgain(const Key& key) { pending_.at(key).written = false; }
  // Throws ProtocolError "bad-key" if the tensor was not sent, or was acknowledged before.
  bool acknowledged(const ReceivedReport& report);
  void settle(const Key& key, const std::optional<LinkInfo>& link);
  // Records the tensors that were written but not acknowledged; the connection has ended.
  void recordUnacknowledged();

  // ---- Received tensors ----

  void received(const TransferRecord& record) { account(record); }

  // ---- Totals: any thread ----

  // Call when a tensor was encoded here.
  void encoded(double seconds);
  // Seconds of encoding and decoding on this side since the last call.
  double takeCodecSeconds();
  // `connection`: the byte counts of the connections; peaks: their peak throughput, in bytes per
  // second.
  LinkTotals totals(const ByteCounts& connection, double peakSent, double peakReceived) const;

 private:
  struct Pending {
    TransferRecord record;
    bool written = false;
    bool acknowledged = false;
  };
  void account(const TransferRecord& record);

  const Role role_;
  const std::size_t maxPending_;
  const std::function<void(const TransferRecord&)> record_;
  std::map<Key, Pending> pending_;

  mutable std::mutex mutex_;
  LinkTotals totals_;
  double codecSecondsTaken_ = 0;
};

}  // namespace cleave
