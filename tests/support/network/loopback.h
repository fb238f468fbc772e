// Connections over real loopback sockets for tests: with each other (Pair), or with a raw peer that
// can do what a Connection never does (Raw). One thread, no sleeps: tests wait with runUntil() and
// settle().
#pragma once

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/net/connection.h"
#include "proto/wire.pb.h"

namespace cleave {

using Bytes = std::vector<std::byte>;
using SocketPair = std::pair<boost::asio::ip::tcp::socket, boost::asio::ip::tcp::socket>;

// A timeout for loaded machines; the waits are normally much shorter.
inline constexpr std::chrono::seconds kPatience{60};

inline std::string asText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- Frames as text, for the raw peer ----

struct Frame {
  FrameKind kind;
  std::string metadata = {};
  std::string payload = {};
  std::uint64_t stream = 0;
  std::uint16_t flags = 0;
};

inline std::string bytesOf(const Frame& frame) {
  FrameHeader header;
  header.kind = frame.kind;
  header.flags = frame.flags;
  header.stream = frame.stream;
  header.metadataBytes = static_cast<std::uint32_t>(frame.metadata.size());
  header.payloadBytes = static_cast<std::uint32_t>(frame.payload.size());
  if (frame.flags == kFlagChecksum) {
    const HeaderBytes start = encodeHeader(header);
    header.checksum =
        frameChecksum(std::span(start).first<24>(), std::as_bytes(std::span(frame.metadata)),
                      std::as_bytes(std::span(frame.payload)));
  }
  return asText(encodeHeader(header)) + frame.metadata + frame.payload;
}

inline std::string failureText(const std::string& code, const std::string& sentence,
                               const std::string& hint) {
  wire::Failure failure;
  failure.set_code(code);
  failure.set_sentence(sentence);
  failure.set_hint(hint);
  return failure.SerializeAsString();
}

inline std::string byeText(const std::string& reason) {
  wire::Bye bye;
  bye.set_reason(reason);
  return bye.SerializeAsString();
}

// ---- The results of a Connection's run() and its sink ----

struct Outcome {
  bool done = false;
  std::string reason;
  std::string code;
  std::string text;
  std::string hint;
  int exitCode = 0;

  void fail(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& cause) {
      code = cause.code();
      text = cause.what();
      hint = cause.hint();
      exitCode = cause.exitCode();
    }
  }
};

class Sink : public FrameSink {
 public:
  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override {
    if (header.kind == FrameKind::tensor) {
      wire::Tensor tensor;
      REQUIRE(tensor.ParseFromArray(metadata.data(), static_cast<int>(metadata.size())));
      streams_[header.stream] = {tensor.codec(), Bytes(tensor.encoded_bytes()), 0};
    }
    Stream& stream = streams_.at(header.stream);
    const auto place = std::span(stream.bytes).subspan(stream.placed, header.payloadBytes);
    stream.placed += header.payloadBytes;
    return place;
  }

  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override {
    if (onFrame) onFrame(header);
    if (!isTensorData(header.kind)) {
      controls.emplace_back(header.kind, asText(metadata));
      return;
    }
    Stream& stream = streams_.at(header.stream);
    REQUIRE(payload.data() + payload.size() == stream.bytes.data() + stream.placed);
    if (stream.placed < stream.bytes.size()) return;
    order.push_back(stream.name);
    tensors[stream.name] = std::move(stream.bytes);
    streams_.erase(header.stream);
  }

  std::map<std::string, Bytes> tensors;  // complete tensors, by name
  std::vector<std::string> order;        // names in the order of completion
  std::vector<std::pair<FrameKind, std::string>> controls;
  std::function<void(const FrameHeader&)> onFrame;

 private:
  struct Stream {
    std::string name;
    Bytes bytes;
    std::size_t placed = 0;
  };
  std::map<std::uint64_t, Stream> streams_;
};

inline Bytes randomBytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  const RandomKey key = randomKey(seed, "bytes");
  for (std::size_t j = 0; j < size; j += sizeof(std::uint64_t)) {
    const std::uint64_t bits = randomBits(key, j);
    std::memcpy(bytes.data() + j, &bits, std::min(sizeof bits, size - j));
  }
  return bytes;
}

// ---- The fixture ----

class Loopback {
 public:
  // Connected sockets. The reader's receive buffer is small, so that a flood fills it quickly.
  SocketPair connect(int receiveBuffer = 0) {
    boost::asio::ip::tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
    if (receiveBuffer > 0) {
      acceptor.set_option(boost::asio::socket_base::receive_buffer_size(receiveBuffer));
    }
    boost::asio::ip::tcp::socket client(io_);
    client.connect(acceptor.local_endpoint());
    return {acceptor.accept(), std::move(client)};
  }

  // Starts run(); fills `outcome` when it ends.
  void start(Connection& connection, FrameSink& sink, Outcome& outcome) {
    boost::asio::co_spawn(io_, connection.run(sink),
                          [&outcome](const std::exception_ptr& error, std::string reason) {
                            outcome.done = true;
                            outcome.reason = std::move(reason);
                            if (error) outcome.fail(error);
                          });
  }

  template <typename Condition>
  void runUntil(Condition condition) {
    const SteadyTime deadline = now() + kPatience;
    while (!condition()) {
      if (io_.stopped()) io_.restart();
      if (io_.run_one_until(deadline) == 0 && !condition())
        FAIL("the condition was not met in time");
    }
  }

  // Runs until no progress is possible without a timer.
  void settle() {
    if (io_.stopped()) io_.restart();
    while (io_.poll() > 0) {
    }
  }

  Outcome readHandshake(Connection& connection, ConnectionState state,
                        Connection::HandshakeFrame& frame) {
    Outcome outcome;
    boost::asio::co_spawn(io_, connection.readHandshakeFrame(state),
                          [&](const std::exception_ptr& error, Connection::HandshakeFrame got) {
                            outcome.done = true;
                            frame = std::move(got);
                            if (error) outcome.fail(error);
                          });
    runUntil([&] { return outcome.done; });
    return outcome;
  }

  Outcome writeHandshake(Connection& connection, FrameKind kind, std::string metadata) {
    Outcome outcome;
    boost::asio::co_spawn(io_, connection.writeHandshakeFrame(kind, std::move(metadata)),
                          [&](const std::exception_ptr& error) {
                            outcome.done = true;
                            if (error) outcome.fail(error);
                          });
    runUntil([&] { return outcome.done; });
    return outcome;
  }

 protected:
  boost::asio::io_context io_;
};

// Two connections, a and b.
class Pair : public Loopback {
 public:
  explicit Pair(ConnectionOptions optionsA = {}, ConnectionOptions optionsB = {},
                int receiveBufferA = 0)
      : sockets_(connect(receiveBufferA)),
        a(std::move(sockets_.first), optionsA),
        b(std::move(sockets_.second), optionsB) {}

  void startBoth() {
    start(a, sinkA, outcomeA);
    start(b, sinkB, outcomeB);
  }
  void finish() {
    runUntil([&] { return outcomeA.done && outcomeB.done; });
  }

  // Queues a tensor at `from`; adds its bytes on the wire to `wireBytes` once it is written.
  void send(Connection& from, const std::string& name, Bytes bytes, int priority = 0,
            const std::string& sha256 = {}) {
    auto owner = std::make_shared<const Bytes>(std::move(bytes));
    OutgoingTensor tensor;
    tensor.bytes = *owner;
    tensor.owner = owner;
    tensor.priority = priority;
    tensor.queuedAt = now();
    tensor.sha256 = sha256;
    tensor.openMetadata = [name, size = owner->size()](double) {
      wire::Tensor metadata;
      metadata.set_codec(name);
      metadata.set_encoded_bytes(size);
      return metadata.SerializeAsString();
    };
    tensor.wireBytes = std::make_shared<std::uint64_t>(0);
    tensor.written = [this, bytesOnWire = tensor.wireBytes] { wireBytes += *bytesOnWire; };
    from.outbox().pushTensor(std::move(tensor));
    from.wake();
  }

 private:
  SocketPair sockets_;  // moved into a and b by the constructor

 public:
  Connection a;
  Connection b;
  Sink sinkA, sinkB;
  Outcome outcomeA, outcomeB;
  std::uint64_t wireBytes = 0;
};

// One connection and a raw peer.
class Raw : public Loopback {
 public:
  explicit Raw(ConnectionOptions options = {}, int receiveBuffer = 0)
      : sockets_(connect(receiveBuffer)),
        connection(std::move(sockets_.second), options),
        peer(std::move(sockets_.first)) {}

  void send(const std::string& bytes) { boost::asio::write(peer, boost::asio::buffer(bytes)); }

  // Makes the peer read from now on, and close when it has read to the end.
  void collect() {
    peer.async_read_some(boost::asio::buffer(chunk_), [this](const auto& error, std::size_t bytes) {
      received_.append(chunk_.data(), bytes);
      if (!error) return collect();
      peer.close();
    });
  }
  // Closes with a reset.
  void reset() {
    peer.set_option(boost::asio::socket_base::linger(true, 0));
    peer.close();
  }

  // The complete frames that the peer has read.
  std::vector<Frame> frames() const {
    std::vector<Frame> all;
    const auto bytes = std::as_bytes(std::span(received_));
    for (std::size_t at = 0; at + kHeaderBytes <= bytes.size();) {
      const FrameHeader header = decodeHeader(bytes.subspan(at).first<kHeaderBytes>());
      const std::size_t size = kHeaderBytes + header.metadataBytes + header.payloadBytes;
      if (at + size > bytes.size()) break;
      all.push_back({header.kind,
                     received_.substr(at + kHeaderBytes, header.metadataBytes),
                     {},
                     header.stream,
                     header.flags});
      at += size;
    }
    return all;
  }
  // The code of the Failure at the end of what the peer has read; empty if there is none.
  std::string failureCode() const {
    const auto all = frames();
    if (all.empty() || all.back().kind != FrameKind::failure) return {};
    wire::Failure failure;
    REQUIRE(failure.ParseFromString(all.back().metadata));
    return failure.code();
  }

  Outcome run() { return run(sink); }
  Outcome run(FrameSink& into) {
    start(connection, into, outcome);
    runUntil([&] { return outcome.done; });
    settle();  // the peer reads what remains
    return outcome;
  }

 private:
  SocketPair sockets_;  // moved into connection and peer by the constructor
  std::array<char, 4096> chunk_{};
  std::string received_;

 public:
  Connection connection;
  boost::asio::ip::tcp::socket peer;
  Sink sink;
  Outcome outcome;
};

}  // namespace cleave
