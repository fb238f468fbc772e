#include "common/net/frame_stream.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cassert>
#include <cstring>
#include <string>

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::use_awaitable;

constexpr std::size_t kAheadBytes = 4 << 10;
// Asio's own limit, 64 KiB a system call, costs half of the throughput on a fast link.
constexpr std::size_t kMostBytesACall = 4 << 20;
constexpr std::chrono::seconds kMostUnacknowledged{30};

std::size_t frameBytes(const FrameHeader& header) {
  return kHeaderBytes + header.metadataBytes + header.payloadBytes;
}

std::span<const std::byte, 24> checksummedPart(const HeaderBytes& bytes) {
  return std::span(bytes).first<24>();
}

}  // namespace

FrameStream::FrameStream(asio::ip::tcp::socket socket, bool checksum, FrameDeadline deadline)
    : socket_(std::move(socket)),
      descriptor_(socket_.is_open() ? socket_.native_handle() : -1),
      checksum_(checksum),
      ahead_(kAheadBytes),
      progress_(deadline) {
  sendWithoutDelay(descriptor_);
  limitUnacknowledged(descriptor_, kMostUnacknowledged);
}

void FrameStream::limitUnsent(std::size_t bytes) { cleave::limitUnsent(descriptor_, bytes); }

// ---- Reading ----

// At least one byte, from what was read ahead or else from the socket: straight into `place`, and
// on into ahead_.
asio::awaitable<std::size_t> FrameStream::readSome(std::span<std::byte> place) {
  if (aheadBegin_ < aheadEnd_) {
    const std::size_t bytes = std::min(place.size(), aheadEnd_ - aheadBegin_);
    std::memcpy(place.data(), ahead_.data() + aheadBegin_, bytes);
    aheadBegin_ += bytes;
    co_return bytes;
  }
  const std::array<asio::mutable_buffer, 2> buffers = {asio::buffer(place.data(), place.size()),
                                                       asio::buffer(ahead_)};
  const std::size_t bytes = co_await socket_.async_read_some(buffers, use_awaitable);
  lastArrival_ = now();
  progress_.arrived(bytes, lastArrival_);
  aheadBegin_ = 0;
  aheadEnd_ = bytes > place.size() ? bytes - place.size() : 0;
  co_return bytes - aheadEnd_;
}

asio::awaitable<void> FrameStream::readAll(std::span<std::byte> place) {
  while (!place.empty()) place = place.subspan(co_await readSome(place));
}

asio::awaitable<FrameStream::Head> FrameStream::readHead(ConnectionState state) {
  HeaderBytes bytes;
  std::size_t have = 0;
  while (have < bytes.size()) {
    have += co_await readSome(std::span(bytes).subspan(have));
    if (!progress_.isMidFrame()) progress_.begin(now());
    checkMagic(std::span(bytes).first(have));
  }
  const FrameHeader header = decodeHeader(bytes);
  checkFrame(header, state);
  metadata_.resize(header.metadataBytes);
  co_await readAll(metadata_);
  co_return Head{header, metadata_};
}

asio::awaitable<void> FrameStream::readPayload(Head head, std::span<std::byte> place) {
  const FrameHeader& header = head.header;
  assert(place.size() == header.payloadBytes);
  co_await readAll(place);
  progress_.end();
  (isTensorData(header.kind) ? tensorReceived_ : controlReceived_)
      .fetch_add(frameBytes(header), std::memory_order_relaxed);
  if ((header.flags & kFlagChecksum) == 0) co_return;
  const HeaderBytes bytes = encodeHeader(header);  // as they came: every bit is in the fields
  if (frameChecksum(checksummedPart(bytes), head.metadata, place) != header.checksum) {
    throw ProtocolError("bad-checksum",
                        std::string("a ") + std::string(frameKindName(header.kind)) + " frame of " +
                            std::to_string(frameBytes(header)) + " bytes was damaged on the way");
  }
}

asio::awaitable<void> FrameStream::drain() {
  while (true) co_await socket_.async_read_some(asio::buffer(ahead_), use_awaitable);
}

// ---- Writing ----

asio::awaitable<void> FrameStream::readyToWrite() {
  co_await socket_.async_wait(asio::ip::tcp::socket::wait_write, use_awaitable);
}

asio::awaitable<void> FrameStream::write(FrameKind kind, std::uint64_t stream,
                                         std::string_view metadata,
                                         std::span<const std::byte> payload) {
  FrameHeader header;
  header.kind = kind;
  header.stream = stream;
  header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
  header.payloadBytes = static_cast<std::uint32_t>(payload.size());
  if (checksum_) {
    header.flags = kFlagChecksum;
    const HeaderBytes start = encodeHeader(header);
    header.checksum =
        frameChecksum(checksummedPart(start), std::as_bytes(std::span(metadata)), payload);
  }
  const HeaderBytes bytes = encodeHeader(header);
  const std::array<asio::const_buffer, 3> parts = {asio::buffer(bytes.data(), bytes.size()),
                                                   asio::buffer(metadata.data(), metadata.size()),
                                                   asio::buffer(payload.data(), payload.size())};
  const auto untilAll = [total = frameBytes(header)](const boost::system::error_code& error,
                                                     std::size_t written) -> std::size_t {
    return error || written >= total ? 0 : kMostBytesACall;
  };
  co_await asio::async_write(socket_, parts, untilAll, use_awaitable);
  (isTensorData(kind) ? tensorSent_ : controlSent_)
      .fetch_add(frameBytes(header), std::memory_order_relaxed);
}

void FrameStream::endWriting() {
  boost::system::error_code ignored;  // the connection may be gone already
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void FrameStream::close() {
  const std::lock_guard lock(infoMutex_);
  if (!open_) return;
  lastInfo_ = readLinkInfo(descriptor_).value_or(LinkInfo{});
  open_ = false;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

// ---- What is known ----

SteadyTime FrameStream::lastArrival() {
  // A process that was stopped for a while has bytes in the kernel that it had no time to read.
  boost::system::error_code ignored;
  if (socket_.available(ignored) > 0) lastArrival_ = now();
  return lastArrival_;
}

ByteCounts FrameStream::bytes() const {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {controlSent_.load(relaxed), controlReceived_.load(relaxed), tensorSent_.load(relaxed),
          tensorReceived_.load(relaxed)};
}

LinkInfo FrameStream::linkInfo() const {
  const std::lock_guard lock(infoMutex_);
  if (!open_) return lastInfo_;
  return readLinkInfo(descriptor_).value_or(LinkInfo{});
}

}  // namespace cleave
