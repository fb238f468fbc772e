#include "common/link/connection_slot.h"

#include <algorithm>
#include <boost/asio/post.hpp>

namespace cleave {

void ConnectionSlot::post(std::function<void()> task) { boost::asio::post(io_, std::move(task)); }

void ConnectionSlot::fail(std::exception_ptr error) {
  onIo([self = shared_from_this(), error = std::move(error)] {
    if (const auto connection = self->connection()) return connection->fail(error);
    self->failed_(error);
  });
}

// ---- Control frames ----

void ConnectionSlot::sendControl(FrameKind kind, std::string metadata) {
  onIo([self = shared_from_this(), kind, metadata = std::move(metadata)]() mutable {
    if (self->unconfirmed_.size() >= kMaxUnconfirmed) {
      throw ProtocolError(
          ErrorKind::link, "not-reading",
          "the peer has not confirmed " + std::to_string(kMaxUnconfirmed) + " control frames");
    }
    self->unconfirmed_.push_back({kind, std::move(metadata)});
    self->queue(self->unconfirmed_.back());
  });
}

void ConnectionSlot::queue(const ControlFrame& frame) {
  const auto connection = this->connection();
  if (!connection) return;
  connection->outbox().pushControl(frame.kind, frame.metadata);
  connection->wake();
}

void ConnectionSlot::confirmControl(std::uint64_t count) {
  // A lower count is outdated: it comes from a frame that was sent again.
  if (count > confirmed_) drop(count);
}

void ConnectionSlot::drop(std::uint64_t confirmed) {
  if (confirmed < confirmed_ || confirmed - confirmed_ > unconfirmed_.size()) {
    throw ProtocolError("bad-arrived", "the peer claims to have received " +
                                           std::to_string(confirmed) + " control frames; " +
                                           std::to_string(confirmed_ + unconfirmed_.size()) +
                                           " were sent");
  }
  const auto count = static_cast<std::ptrdiff_t>(confirmed - confirmed_);
  unconfirmed_.erase(unconfirmed_.begin(), unconfirmed_.begin() + count);
  confirmed_ = confirmed;
}

// ---- The connection ----

void ConnectionSlot::attach(std::shared_ptr<Connection> connection, std::uint64_t confirmed) {
  drop(confirmed);
  {
    const std::lock_guard lock(mutex_);
    connection_ = std::move(connection);
    if (offlineSince_) {
      ++reconnects_;
      offlineSeconds_ += secondsSince(*offlineSince_);
    }
  }
  for (const ControlFrame& frame : unconfirmed_) queue(frame);
}

void ConnectionSlot::detach() {
  const ByteCounts total = bytes();
  const double sent = peakSent();
  const double received = peakReceived();
  const ClockSample last = clock();
  const std::lock_guard lock(mutex_);
  connection_.reset();
  offlineSince_ = now();
  pastBytes_ = total;
  pastPeakSent_ = sent;
  pastPeakReceived_ = received;
  pastClock_ = last;
}

void ConnectionSlot::sendTensor(OutgoingTensor tensor) {
  const auto connection = this->connection();
  if (!connection) return;
  connection->outbox().pushTensor(std::move(tensor));
  connection->wake();
}

std::shared_ptr<Connection> ConnectionSlot::connection() const {
  const std::lock_guard lock(mutex_);
  return connection_;
}

ByteCounts ConnectionSlot::bytes() const {
  const std::lock_guard lock(mutex_);
  ByteCounts total = pastBytes_;
  if (connection_) total += connection_->bytes();
  return total;
}

double ConnectionSlot::peakSent() const {
  const std::lock_guard lock(mutex_);
  return std::max(pastPeakSent_, connection_ ? connection_->peakSent() : 0);
}

double ConnectionSlot::peakReceived() const {
  const std::lock_guard lock(mutex_);
  return std::max(pastPeakReceived_, connection_ ? connection_->peakReceived() : 0);
}

std::uint64_t ConnectionSlot::reconnects() const {
  const std::lock_guard lock(mutex_);
  return reconnects_;
}

double ConnectionSlot::offlineSeconds() const {
  const std::lock_guard lock(mutex_);
  return offlineSeconds_;
}

ClockSample ConnectionSlot::clock() const {
  const std::lock_guard lock(mutex_);
  if (!connection_) return pastClock_;
  const ClockSample clock = connection_->clock();
  return clock.roundTripSeconds > 0 ? clock : pastClock_;
}

std::optional<LinkInfo> ConnectionSlot::linkInfo() const {
  const auto connection = this->connection();
  return connection ? std::optional(connection->linkInfo()) : std::nullopt;
}

double ConnectionSlot::sendRate() const {
  const auto connection = this->connection();
  return connection ? connection->sendRate() : 0;
}

double ConnectionSlot::receiveRate() const {
  const auto connection = this->connection();
  return connection ? connection->receiveRate() : 0;
}

}  // namespace cleave
