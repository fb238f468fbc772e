#include "common/net/frame_stream.h"

#include <boost/system/system_error.hpp>
#include <cassert>
#include <exception>
#include <string>
#include <utility>

#include "common/net/connection_messages.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

std::size_t frameBytes(const FrameHeader& header) {
  return kHeaderBytes + header.metadataBytes + header.payloadBytes;
}

std::span<const std::byte, 24> checksummedPart(const HeaderBytes& bytes) {
  return std::span(bytes).first<24>();
}

}  // namespace

FrameStream::FrameStream(std::unique_ptr<ByteStream> bytes, bool checksum, FrameDeadline deadline)
    : bytes_(std::move(bytes)), checksum_(checksum), progress_(deadline) {}

asio::awaitable<void> FrameStream::secure() {
  std::exception_ptr refused;
  try {
    co_await bytes_->secure();
    co_return;
  } catch (const NotTls& error) {
    encodeHead(FrameKind::failure, 0, failureMetadata(error), {}, true, head_);
    refused = std::current_exception();
  }
  try {
    co_await bytes_->writePlain(head_);
  } catch (const boost::system::system_error&) {
    // The peer is gone.
  }
  std::rethrow_exception(refused);
}

// ---- Reading ----

asio::awaitable<std::size_t> FrameStream::readSome(std::span<std::byte> place) {
  const std::size_t bytes = co_await bytes_->readSome(place);
  progress_.arrived(bytes, now());
  co_return bytes;
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
  // Equal to the received bytes, because the fields hold every bit.
  const HeaderBytes bytes = encodeHeader(header);
  if (frameChecksum(checksummedPart(bytes), head.metadata, place) != header.checksum) {
    throw ProtocolError(ErrorKind::link, "bad-checksum",
                        std::string("a ") + std::string(frameKindName(header.kind)) + " frame of " +
                            std::to_string(frameBytes(header)) + " bytes was damaged in transit");
  }
}

// ---- Writing ----

asio::awaitable<void> FrameStream::write(FrameKind kind, std::uint64_t stream,
                                         std::string_view metadata,
                                         std::span<const std::byte> payload) {
  encodeHead(kind, stream, metadata, payload, checksum_, head_);
  co_await bytes_->write(head_, payload);
  (isTensorData(kind) ? tensorSent_ : controlSent_)
      .fetch_add(head_.size() + payload.size(), std::memory_order_relaxed);
}

// ---- Counters ----

ByteCounts FrameStream::bytes() const {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {controlSent_.load(relaxed), controlReceived_.load(relaxed), tensorSent_.load(relaxed),
          tensorReceived_.load(relaxed)};
}

}  // namespace cleave
