#include "common/net/streams/byte_stream.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstring>
#include <utility>

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;

constexpr std::size_t kAheadBytes = 4 << 10;
constexpr std::chrono::seconds kMaxUnacknowledged{30};

}  // namespace

ByteStream::ByteStream(Socket socket)
    : socket_(std::move(socket)), descriptor_(socket_.is_open() ? socket_.native_handle() : -1) {
  sendWithoutDelay(descriptor_);
  limitUnacknowledged(descriptor_, kMaxUnacknowledged);
}

void ByteStream::limitUnsent(std::size_t bytes) { cleave::limitUnsent(descriptor_, bytes); }

asio::awaitable<void> ByteStream::drain() {
  std::vector<std::byte> dropped(kAheadBytes);
  while (true) co_await socket_.async_read_some(asio::buffer(dropped), use_awaitable);
}

asio::awaitable<void> ByteStream::readyToWrite() {
  co_await socket_.async_wait(Socket::wait_write, use_awaitable);
}

asio::awaitable<void> ByteStream::writePlain(std::span<const std::byte> bytes) {
  co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), use_awaitable);
}

void ByteStream::endWriting() {
  sayEnd();
  boost::system::error_code ignored;  // the connection may already be gone
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void ByteStream::close() {
  const std::lock_guard lock(infoMutex_);
  if (!open_) return;
  sayEnd();
  lastInfo_ = readLinkInfo(descriptor_).value_or(LinkInfo{});
  open_ = false;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

SteadyTime ByteStream::lastArrival() {
  // If this process was suspended, bytes may be waiting unread in the kernel.
  boost::system::error_code ignored;
  if (socket_.available(ignored) > 0) arrived();
  return lastArrival_;
}

LinkInfo ByteStream::linkInfo() const {
  const std::lock_guard lock(infoMutex_);
  if (!open_) return lastInfo_;
  return readLinkInfo(descriptor_).value_or(LinkInfo{});
}

// ---- Plain ----

PlainStream::PlainStream(Socket socket) : ByteStream(std::move(socket)), ahead_(kAheadBytes) {}

asio::awaitable<void> PlainStream::secure() { co_return; }

// Returns bytes that were read ahead, if any. Otherwise reads from the socket into `place`, and
// surplus bytes into ahead_.
asio::awaitable<std::size_t> PlainStream::readSome(std::span<std::byte> place) {
  if (aheadBegin_ < aheadEnd_) {
    const std::size_t bytes = std::min(place.size(), aheadEnd_ - aheadBegin_);
    std::memcpy(place.data(), ahead_.data() + aheadBegin_, bytes);
    aheadBegin_ += bytes;
    co_return bytes;
  }
  const std::array<asio::mutable_buffer, 2> buffers = {asio::buffer(place.data(), place.size()),
                                                       asio::buffer(ahead_)};
  const std::size_t bytes = co_await socket().async_read_some(buffers, use_awaitable);
  arrived();
  aheadBegin_ = 0;
  aheadEnd_ = bytes > place.size() ? bytes - place.size() : 0;
  co_return bytes - aheadEnd_;
}

asio::awaitable<void> PlainStream::write(std::span<const std::byte> head,
                                         std::span<const std::byte> payload) {
  const std::array<asio::const_buffer, 2> parts = {asio::buffer(head.data(), head.size()),
                                                   asio::buffer(payload.data(), payload.size())};
  co_await asio::async_write(socket(), parts, inOneCall(head.size() + payload.size()),
                             use_awaitable);
}

}  // namespace cleave
