#include "common/link/transfer_log.h"

#include <cassert>
#include <string>
#include <utility>

#include "common/core/error.h"
#include "common/engine/messages.h"
#include "common/link/wire_messages.h"

namespace cleave {

// Both sides acknowledge arriving tensors before they send the next one, so only a peer that does
// not acknowledge exceeds the maximum.
void TransferLog::queued(TransferRecord record) {
  if (isFull()) {
    throw ProtocolError("too-many-in-flight", "the peer has not acknowledged " +
                                                  std::to_string(maxPending_) + " tensors");
  }
  record.sent = true;
  const Key key = record.key;
  assert(!pending_.contains(key));
  pending_[key].record = std::move(record);
}

void TransferLog::begun(const Key& key, double queueSeconds) {
  pending_.at(key).record.queueSeconds = queueSeconds;
}

bool TransferLog::written(const Key& key, std::uint64_t wireBytes) {
  Pending& sent = pending_.at(key);
  sent.record.wireBytes = wireBytes;
  sent.written = true;
  return sent.acknowledged;
}

bool TransferLog::acknowledged(const ReceivedReport& report) {
  const auto found = pending_.find(report.key);
  if (found == pending_.end() || found->second.acknowledged) {
    throw ProtocolError("bad-key", "a Received arrived for " + toString(report.key) +
                                       ", which was not sent, or was acknowledged before");
  }
  Pending& sent = found->second;
  sent.acknowledged = true;
  sent.record.wireSeconds = report.wireSeconds;
  sent.record.decodeSeconds = report.decodeSeconds;
  return sent.written;
}

void TransferLog::settle(const Key& key, const std::optional<LinkInfo>& link) {
  assert(pending_.contains(key) && pending_.at(key).written);
  TransferRecord record = std::move(pending_.extract(key).mapped().record);
  record.link = link;
  account(record);
}

void TransferLog::recordUnacknowledged() {
  for (const auto& [key, sent] : pending_) {
    if (sent.written) account(sent.record);
  }
  pending_.clear();
}

// ---- Totals ----

void TransferLog::account(const TransferRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    const bool up = record.sent == (role_ == Role::client);
    if (isBlob(record.key.flow)) {
      (up ? totals_.blobUp : totals_.blobDown) += record.wireBytes;
    } else {
      (up ? totals_.rawUp : totals_.rawDown) += record.rawBytes;
      (up ? totals_.wireUp : totals_.wireDown) += record.wireBytes;
      LinkTotals::FlowTotals& flow = totals_.flows[record.key.flow];
      ++flow.tensors;
      flow.wireBytes += record.wireBytes;
      flow.encodeSeconds += record.encodeSeconds.value_or(0);
      flow.decodeSeconds += record.decodeSeconds.value_or(0);
    }
    if (!record.sent) totals_.decodeSeconds += record.decodeSeconds.value_or(0);
    ++totals_.transfers;
  }
  record_(record);
}

void TransferLog::encoded(double seconds) {
  const std::lock_guard lock(mutex_);
  totals_.encodeSeconds += seconds;
}

double TransferLog::takeCodecSeconds() {
  const std::lock_guard lock(mutex_);
  const double codecSeconds = totals_.encodeSeconds + totals_.decodeSeconds;
  return codecSeconds - std::exchange(codecSecondsTaken_, codecSeconds);
}

LinkTotals TransferLog::totals(const ByteCounts& connection, double peakSent,
                               double peakReceived) const {
  const std::lock_guard lock(mutex_);
  LinkTotals totals = totals_;
  const bool client = role_ == Role::client;
  totals.controlUp = client ? connection.controlSent : connection.controlReceived;
  totals.controlDown = client ? connection.controlReceived : connection.controlSent;
  totals.peakUp = client ? peakSent : peakReceived;
  totals.peakDown = client ? peakReceived : peakSent;
  return totals;
}

}  // namespace cleave
