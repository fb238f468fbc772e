#include "common/replicas/group_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kSizeBytes = 4;
constexpr std::size_t kHeadBytes = 2;  // kind, size of the key
constexpr std::chrono::milliseconds kAlive{1000};
constexpr std::chrono::seconds kFinishTime{2};

std::string encode(const GroupMessage& message) {
  const std::size_t size = kHeadBytes + message.key.size() + message.value.size();
  std::string text;
  for (unsigned shift = 0; shift < 32; shift += 8) text += static_cast<char>(size >> shift);
  text += static_cast<char>(message.kind);
  text += static_cast<char>(message.key.size());
  return text + message.key + message.value;
}

std::size_t sizeIn(const std::array<unsigned char, kSizeBytes>& bytes) {
  std::size_t size = 0;
  for (std::size_t j = 0; j < kSizeBytes; ++j) size |= std::size_t{bytes[j]} << (8 * j);
  return size;
}

RunError notAMessage() { return {"not-a-message", "it sent something that is not a message"}; }

GroupMessage decode(const std::string& text) {
  const auto kind = static_cast<GroupMessage::Kind>(text[0]);
  const std::size_t keySize = static_cast<unsigned char>(text[1]);
  if (kind > GroupMessage::Kind::lost || kHeadBytes + keySize > text.size()) throw notAMessage();
  return {kind, text.substr(kHeadBytes, keySize), text.substr(kHeadBytes + keySize)};
}

}  // namespace

GroupConnection::GroupConnection(SharedSocket socket, std::chrono::milliseconds timeout)
    : socket_(std::move(socket)), timeout_(timeout), timer_(socket_->get_executor()) {
  error_code ignored;
  socket_->set_option(asio::ip::tcp::no_delay(true), ignored);
}

asio::awaitable<std::string> GroupConnection::run(std::function<void(GroupMessage)> received) {
  std::string reason;
  try {
    watch();
    for (;;) {
      GroupMessage message = co_await read();
      heard_ = now();
      if (message.kind != GroupMessage::Kind::alive) received(std::move(message));
    }
  } catch (const boost::system::system_error& error) {
    const bool hasEnded =
        error.code() == asio::error::eof || error.code() == asio::error::connection_reset;
    reason = hasEnded ? "its connection ended" : error.code().message();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  close(reason);
  co_return reason_;
}

asio::awaitable<GroupMessage> GroupConnection::read() {
  std::array<unsigned char, kSizeBytes> head{};
  co_await asio::async_read(*socket_, asio::buffer(head), asio::use_awaitable);
  const std::size_t size = sizeIn(head);
  if (size < kHeadBytes || size > kHeadBytes + kMaxKeyBytes + kMaxValueBytes) throw notAMessage();
  std::string text(size, '\0');
  co_await asio::async_read(*socket_, asio::buffer(text), asio::use_awaitable);
  co_return decode(text);
}

void GroupConnection::send(const GroupMessage& message) {
  if (isClosed_ || isFinishing_) return;
  queue_.push_back(encode(message));
  queuedBytes_ += queue_.back().size();
  if (queuedBytes_ > kMaxQueuedBytes) return close("it does not read its messages");
  if (queue_.size() == 1) write();
}

void GroupConnection::write() {
  asio::async_write(*socket_, asio::buffer(queue_.front()),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      // After an error, run() reads what has arrived, and then ends.
                      if (error) return;
                      self->queuedBytes_ -= self->queue_.front().size();
                      self->queue_.pop_front();
                      if (!self->queue_.empty()) return self->write();
                      error_code ignored;
                      if (self->isFinishing_) {
                        self->socket_->shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
                      }
                    });
}

void GroupConnection::finish() {
  if (isClosed_ || isFinishing_) return;
  isFinishing_ = true;
  finishing_ = now();
  error_code ignored;
  if (queue_.empty()) socket_->shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void GroupConnection::close(const std::string& reason) {
  if (isClosed_) return;
  isClosed_ = true;
  reason_ = reason;
  timer_.cancel();
  error_code ignored;
  socket_->close(ignored);
}

void GroupConnection::watch() {
  if (isClosed_) return;
  if (now() - heard_ > timeout_) {
    return close("it has not replied for " + durationText(Nanoseconds(timeout_)));
  }
  if (isFinishing_ && now() - finishing_ > kFinishTime) return close("it did not close");
  if (queue_.empty()) send({GroupMessage::Kind::alive});
  timer_.expires_after(std::min(kAlive, timeout_ / 4));
  timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) self->watch();
  });
}

}  // namespace cleave
