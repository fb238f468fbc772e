// Connections over real loopback sockets: against each other, and against a raw peer that does what
// a Connection never does.
#include "common/net/connection.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/core/random.h"
#include "proto/wire.pb.h"
#include "tests/error_code.h"

using namespace cleave;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

using Bytes = std::vector<std::byte>;

constexpr auto kPatience = 60s;  // for loaded machines; nothing here takes long

std::string asText(std::span<const std::byte> bytes) {
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

std::string bytesOf(const Frame& frame) {
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

// The same with one byte replaced.
std::string damaged(std::string bytes, std::size_t at, int value) {
  bytes.at(at) = static_cast<char>(value);
  return bytes;
}

// A header alone that claims these lengths.
std::string claim(FrameKind kind, std::uint32_t metadataBytes, std::uint32_t payloadBytes,
                  std::uint64_t stream = 0) {
  FrameHeader header;
  header.kind = kind;
  header.metadataBytes = metadataBytes;
  header.payloadBytes = payloadBytes;
  header.stream = stream;
  return asText(encodeHeader(header));
}

std::string failureText(const std::string& code, const std::string& sentence,
                        const std::string& fix) {
  wire::Failure failure;
  failure.set_code(code);
  failure.set_sentence(sentence);
  failure.set_fix(fix);
  return failure.SerializeAsString();
}

std::string byeText(const std::string& reason) {
  wire::Bye bye;
  bye.set_reason(reason);
  return bye.SerializeAsString();
}

// ---- What a Connection's run() gave, and what its sink got ----

struct Outcome {
  bool done = false;
  std::string reason;
  std::string code;
  std::string text;
  std::string fix;

  void fail(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& cause) {
      code = cause.code();
      text = cause.what();
      fix = cause.fix();
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

  std::map<std::string, Bytes> tensors;  // complete ones, by name
  std::vector<std::string> order;        // in which they became complete
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

Bytes randomBytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  const RandomKey key = randomKey(seed, "bytes");
  for (std::size_t j = 0; j < size; ++j) bytes[j] = static_cast<std::byte>(randomBits(key, j));
  return bytes;
}

// ---- The fixture ----

class Loopback {
 public:
  // Connected sockets; a receive buffer of few bytes where the reader is to be slow.
  std::pair<tcp::socket, tcp::socket> connect(int receiveBuffer = 0) {
    tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    if (receiveBuffer > 0) {
      acceptor.set_option(asio::socket_base::receive_buffer_size(receiveBuffer));
    }
    tcp::socket client(io_);
    client.connect(acceptor.local_endpoint());
    return {acceptor.accept(), std::move(client)};
  }

  // Starts run(); `outcome` is filled in when it ends.
  void start(Connection& connection, FrameSink& sink, Outcome& outcome) {
    asio::co_spawn(io_, connection.run(sink),
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
        FAIL("what was waited for did not happen");
    }
  }

  // Until nobody can do anything without a timer.
  void settle() {
    if (io_.stopped()) io_.restart();
    while (io_.poll() > 0) {
    }
  }

  Outcome readHandshake(Connection& connection, ConnectionState state,
                        Connection::HandshakeFrame& frame) {
    Outcome outcome;
    asio::co_spawn(io_, connection.readHandshakeFrame(state),
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
    asio::co_spawn(io_, connection.writeHandshakeFrame(kind, std::move(metadata)),
                   [&](const std::exception_ptr& error) {
                     outcome.done = true;
                     if (error) outcome.fail(error);
                   });
    runUntil([&] { return outcome.done; });
    return outcome;
  }

 protected:
  asio::io_context io_;
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
    tensor.written = [this](std::uint64_t bytesOnWire) { wireBytes += bytesOnWire; };
    from.outbox().pushTensor(std::move(tensor));
    from.wake();
  }

 private:
  std::pair<tcp::socket, tcp::socket> sockets_;  // until a and b have them

 public:
  Connection a;
  Connection b;
  Sink sinkA, sinkB;
  Outcome outcomeA, outcomeB;
  std::uint64_t wireBytes = 0;
};

// One connection, and a raw peer.
class Raw : public Loopback {
 public:
  explicit Raw(ConnectionOptions options = {}, int receiveBuffer = 0)
      : sockets_(connect(receiveBuffer)),
        connection(std::move(sockets_.second), options),
        peer(std::move(sockets_.first)) {}

  void send(const std::string& bytes) { asio::write(peer, asio::buffer(bytes)); }

  // From now on the peer reads, and closes when it has read to the end.
  void collect() {
    peer.async_read_some(asio::buffer(chunk_), [this](const auto& error, std::size_t bytes) {
      received_.append(chunk_.data(), bytes);
      if (!error) return collect();
      peer.close();
    });
  }
  // Closes with a reset instead of an orderly end.
  void reset() {
    peer.set_option(asio::socket_base::linger(true, 0));
    peer.close();
  }

  // Whole frames that the peer has read.
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
  // The code of the Failure that ends what the peer has read; empty where none does.
  std::string failureCode() const {
    const auto all = frames();
    if (all.empty() || all.back().kind != FrameKind::failure) return {};
    wire::Failure failure;
    REQUIRE(failure.ParseFromString(all.back().metadata));
    return failure.code();
  }

  Outcome run() {
    start(connection, sink, outcome);
    runUntil([&] { return outcome.done; });
    settle();  // what the peer has still to read
    return outcome;
  }

 private:
  std::pair<tcp::socket, tcp::socket> sockets_;  // until connection and peer have them
  std::array<char, 4096> chunk_{};
  std::string received_;

 public:
  Connection connection;
  tcp::socket peer;
  Sink sink;
  Outcome outcome;
};

ConnectionOptions pinging(std::chrono::milliseconds every, std::chrono::milliseconds timeout) {
  ConnectionOptions options;
  options.pingEvery = every;
  options.pingTimeout = timeout;
  return options;
}

}  // namespace

// ---- What goes well ----

TEST_CASE("tensors both ways at once arrive intact, and every byte is counted on both sides") {
  Pair pair;
  Connection::HandshakeFrame frame;
  REQUIRE(pair.writeHandshake(pair.a, FrameKind::hello, "hello there").code == "");
  REQUIRE(pair.readHandshake(pair.b, ConnectionState::awaitingHello, frame).code == "");
  CHECK(frame.kind == FrameKind::hello);
  CHECK(frame.metadata == "hello there");
  REQUIRE(pair.writeHandshake(pair.b, FrameKind::helloOk, "ok").code == "");
  REQUIRE(pair.readHandshake(pair.a, ConnectionState::awaitingHelloOk, frame).code == "");
  CHECK(frame.kind == FrameKind::helloOk);

  std::map<std::string, Bytes> fromA, fromB;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{3} << 20}) {
    const std::string name = std::to_string(size);
    pair.send(pair.a, name, fromA[name] = randomBytes(size, 1));
    pair.send(pair.b, name, fromB[name] = randomBytes(size, 2));
  }
  pair.a.outbox().pushControl(FrameKind::step, "decision");
  pair.startBoth();
  pair.runUntil([&] { return pair.sinkA.tensors.size() == 3 && pair.sinkB.tensors.size() == 3; });
  pair.a.sayBye("done");
  pair.finish();

  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
  CHECK(pair.sinkB.tensors == fromA);
  CHECK(pair.sinkA.tensors == fromB);
  CHECK(pair.sinkB.controls == std::vector{std::pair(FrameKind::step, std::string("decision"))});

  const ByteCounts a = pair.a.bytes();
  const ByteCounts b = pair.b.bytes();
  CHECK(a.tensorSent + b.tensorSent == pair.wireBytes);
  CHECK(a.tensorSent == b.tensorReceived);
  CHECK(b.tensorSent == a.tensorReceived);
  const std::size_t bye = kHeaderBytes + byeText("done").size();
  CHECK(a.controlSent == (kHeaderBytes + 11) + (kHeaderBytes + 8) + bye);
  CHECK(b.controlReceived == a.controlSent);
  CHECK(b.controlSent == (kHeaderBytes + 2) + bye);
  CHECK(a.controlReceived == b.controlSent);
}

TEST_CASE("an urgent tensor arrives before one that is under way to a slow reader") {
  Pair pair({}, {}, 4096);
  const Bytes big = randomBytes(std::size_t{16} << 20, 1);
  pair.send(pair.b, "big", big, 2);
  pair.start(pair.b, pair.sinkB, pair.outcomeB);
  pair.settle();  // the kernel takes no more
  REQUIRE(pair.b.bytes().tensorSent > 0);
  REQUIRE(pair.b.bytes().tensorSent < big.size() / 2);
  pair.send(pair.b, "urgent", randomBytes(100, 2), 1);
  pair.b.sayBye("done");
  pair.start(pair.a, pair.sinkA, pair.outcomeA);
  pair.finish();
  CHECK(pair.sinkA.order == std::vector<std::string>{"urgent", "big"});
  CHECK(pair.sinkA.tensors["big"] == big);
}

TEST_CASE("without checksums, frames arrive unmarked and intact") {
  ConnectionOptions options;
  options.checksum = false;
  Raw raw(options);
  raw.connection.outbox().pushControl(FrameKind::step, "decision");
  raw.connection.sayBye("done");
  raw.send(bytesOf({FrameKind::stepOk, "ok"}) + bytesOf({FrameKind::bye, byeText("done")}));
  raw.collect();
  CHECK(raw.run().code == "");
  REQUIRE(raw.frames().size() == 2);
  for (const Frame& frame : raw.frames()) CHECK(frame.flags == 0);
  CHECK(raw.sink.controls == std::vector{std::pair(FrameKind::stepOk, std::string("ok"))});
}

TEST_CASE("what comes in one packet with the handshake is not lost") {
  Raw raw;
  raw.send(bytesOf({FrameKind::hello, "hi"}) + bytesOf({FrameKind::step, "decision"}) +
           bytesOf({FrameKind::bye, byeText("done")}));
  raw.collect();
  Connection::HandshakeFrame frame;
  CHECK(raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame).code == "");
  CHECK(raw.run().code == "");
  CHECK(raw.sink.controls == std::vector{std::pair(FrameKind::step, std::string("decision"))});
}

TEST_CASE("a frame that comes byte by byte is one frame") {
  Raw raw;
  raw.start(raw.connection, raw.sink, raw.outcome);
  for (const char byte : bytesOf({FrameKind::step, "decision", "", 0, kFlagChecksum})) {
    raw.send(std::string(1, byte));
    raw.settle();
  }
  raw.runUntil([&] { return !raw.sink.controls.empty(); });
  CHECK(raw.sink.controls == std::vector{std::pair(FrameKind::step, std::string("decision"))});
  CHECK(raw.connection.bytes().controlReceived == kHeaderBytes + 8);
  raw.peer.close();
  raw.runUntil([&] { return raw.outcome.done; });
}

TEST_CASE("the kernel's view and the peer's name are known, also after the end") {
  Pair pair;
  CHECK(pair.b.peer().starts_with("127.0.0.1:"));
  pair.send(pair.a, "tensor", randomBytes(std::size_t{3} << 20, 1));
  pair.a.sayBye("done");
  pair.startBoth();
  pair.finish();
  CHECK(pair.a.linkInfo().roundTripSeconds > 0);
  CHECK(pair.a.linkInfo().deliveryRate > 0);
  CHECK(pair.a.segmentBytes() >= kMinSegmentBytes);
  CHECK(pair.a.segmentBytes() <= kMaxSegmentBytes);
}

// ---- Bye ----

TEST_CASE("Bye from either side ends both, and each hears the other's reason") {
  Pair pair;
  pair.startBoth();
  pair.settle();
  SECTION("a") {
    pair.a.sayBye("interrupted");
    pair.finish();
    CHECK(pair.outcomeB.reason == "interrupted");
    CHECK(pair.outcomeA.reason == "done");
  }
  SECTION("b") {
    pair.b.sayBye("shutting-down");
    pair.finish();
    CHECK(pair.outcomeA.reason == "shutting-down");
    CHECK(pair.outcomeB.reason == "done");
  }
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
}

TEST_CASE("crossing Byes end both, said before run() too") {
  Pair pair;
  pair.a.sayBye("from a");
  pair.b.sayBye("from b");
  pair.startBoth();
  pair.finish();
  CHECK(pair.outcomeA.reason == "from b");
  CHECK(pair.outcomeB.reason == "from a");
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
}

TEST_CASE("Bye comes after all that was queued, on both sides") {
  Pair pair;
  pair.send(pair.a, "from a", randomBytes(std::size_t{2} << 20, 1));
  pair.send(pair.b, "from b", randomBytes(std::size_t{2} << 20, 2), 0, std::string(32, 's'));
  pair.a.sayBye("done");
  pair.startBoth();
  pair.finish();
  CHECK(pair.sinkB.order == std::vector<std::string>{"from a"});
  CHECK(pair.sinkA.order == std::vector<std::string>{"from b"});
}

TEST_CASE("after our Bye the end of the stream is as good as the peer's") {
  Raw raw;
  raw.connection.sayBye("interrupted");
  raw.start(raw.connection, raw.sink, raw.outcome);
  raw.settle();
  SECTION("in order") { raw.peer.shutdown(tcp::socket::shutdown_send); }
  SECTION("by reset") { raw.reset(); }
  raw.runUntil([&] { return raw.outcome.done; });
  CHECK(raw.outcome.code == "");
  CHECK(raw.outcome.reason == "interrupted");
}

TEST_CASE("a peer that does not answer our Bye is not waited for long") {
  Raw raw;
  raw.connection.sayBye("done");
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "");
  CHECK(outcome.reason == "done");
}

// ---- Damage ----

TEST_CASE("damage before the handshake ends it with its own code, and the peer is told") {
  struct Case {
    std::string name;
    std::string bytes;
    std::string code;
    bool told = true;
  };
  const std::string hello = bytesOf({FrameKind::hello, "hi", "", 0, kFlagChecksum});
  const std::vector<Case> cases = {
      {"wrong magic", damaged(hello, 0, 'X'), "not-cleave", false},
      {"HTTP", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not-cleave", false},
      {"a short greeting", "SSH-2.0-x\r\n", "not-cleave", false},
      {"wrong version", damaged(hello, 4, 2), "version-mismatch"},
      {"unknown kind", damaged(hello, 5, 99), "unknown-frame"},
      {"unknown flags", damaged(hello, 7, 1), "bad-frame"},
      {"a stream number", damaged(hello, 16, 1), "bad-frame"},
      {"too much metadata", claim(FrameKind::hello, 4065, 0), "frame-too-large"},
      {"4 GiB of metadata", claim(FrameKind::hello, 0xFFFFFFFF, 0), "frame-too-large"},
      {"a payload", claim(FrameKind::hello, 0, 1), "frame-too-large"},
      {"bad checksum", damaged(hello, hello.size() - 1, '!'), "bad-checksum"},
      {"a Bye", bytesOf({FrameKind::bye, byeText("done")}), "unexpected-frame"},
  };
  for (const Case& damage : cases) {
    INFO(damage.name);
    Raw raw;
    raw.send(damage.bytes);
    raw.collect();
    Connection::HandshakeFrame frame;
    const Outcome outcome =
        raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame);
    raw.settle();
    CHECK(outcome.code == damage.code);
    CHECK(raw.failureCode() == (damage.told ? damage.code : ""));
  }
}

TEST_CASE("a peer that closes within its Hello is said to have closed") {
  Raw raw;
  raw.send(bytesOf({FrameKind::hello, "hi"}).substr(0, 33));
  raw.peer.close();
  Connection::HandshakeFrame frame;
  const Outcome outcome = raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame);
  CHECK(outcome.code == "connection-closed");
  CHECK(outcome.text.find("before the handshake was done") != std::string::npos);
}

TEST_CASE("a peer that sends no Hello in time is told so") {
  ConnectionOptions options;
  options.helloDeadline = 50ms;
  Raw raw(options);
  raw.collect();
  Connection::HandshakeFrame frame;
  SECTION("nothing") {}
  SECTION("a part of it") { raw.send(bytesOf({FrameKind::hello, "hi"}).substr(0, 20)); }
  const Outcome outcome = raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame);
  raw.settle();
  CHECK(outcome.code == "hello-timeout");
  CHECK(raw.failureCode() == "hello-timeout");
}

TEST_CASE(
    "the answer to a Hello may be a refusal, which is returned, or a Failure, which is thrown") {
  Raw raw;
  Connection::HandshakeFrame frame;
  SECTION("Refused") {
    raw.send(bytesOf({FrameKind::refused, "why"}));
    CHECK(raw.readHandshake(raw.connection, ConnectionState::awaitingHelloOk, frame).code == "");
    CHECK(frame.kind == FrameKind::refused);
    CHECK(frame.metadata == "why");
  }
  SECTION("Failure") {
    raw.send(bytesOf({FrameKind::failure, failureText("bad-frame", "what", "how")}));
    const Outcome outcome =
        raw.readHandshake(raw.connection, ConnectionState::awaitingHelloOk, frame);
    CHECK(outcome.code == "bad-frame");
    CHECK(outcome.fix == "how");
  }
}

TEST_CASE("a Hello that no server would take is not sent") {
  Raw raw;
  const std::string tooLong(kMaxHandshakeBytes - kHeaderBytes + 1, 'x');
  CHECK(raw.writeHandshake(raw.connection, FrameKind::hello, tooLong).code == "frame-too-large");
  CHECK(raw.connection.bytes().controlSent == 0);
  const std::string longest(kMaxHandshakeBytes - kHeaderBytes, 'x');
  CHECK(raw.writeHandshake(raw.connection, FrameKind::hello, longest).code == "");
  CHECK(raw.connection.bytes().controlSent == kMaxHandshakeBytes);
}

TEST_CASE("damage after the handshake ends run() with its own code, and the peer is told") {
  struct Case {
    std::string name;
    std::string bytes;
    std::string code;
  };
  wire::Tensor metadata;
  metadata.set_encoded_bytes(1000);
  const std::string tensor = bytesOf(
      {FrameKind::tensor, metadata.SerializeAsString(), std::string(1000, 'p'), 1, kFlagChecksum});
  const std::string step = bytesOf({FrameKind::step, "decision", "", 0, kFlagChecksum});
  const std::vector<Case> cases = {
      {"wrong magic", damaged(step, 2, 'X'), "not-cleave"},
      {"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", "not-cleave"},
      {"wrong version", damaged(step, 4, 0), "version-mismatch"},
      {"unknown kind", damaged(step, 5, 0), "unknown-frame"},
      {"unknown flags", damaged(step, 6, 5), "bad-frame"},
      {"the checksum's flag lost", damaged(step, 6, 0), "bad-frame"},
      {"a Hello", bytesOf({FrameKind::hello, "hi"}), "unexpected-frame"},
      {"a Refused", bytesOf({FrameKind::refused, "why"}), "unexpected-frame"},
      {"a tensor without a stream", claim(FrameKind::tensor, 0, 0, 0), "bad-frame"},
      {"a payload of a control frame", claim(FrameKind::step, 0, 1), "frame-too-large"},
      {"too long a segment", claim(FrameKind::segment, 0, kMaxSegmentBytes + 1, 1),
       "frame-too-large"},
      {"too much tensor metadata", claim(FrameKind::tensor, 4097, 0, 1), "frame-too-large"},
      {"too much metadata", claim(FrameKind::step, 65537, 0), "frame-too-large"},
      {"damaged checksum", damaged(step, 24, 0), "bad-checksum"},
      {"damaged metadata", damaged(step, kHeaderBytes, '!'), "bad-checksum"},
      {"damaged payload", damaged(tensor, tensor.size() - 500, '!'), "bad-checksum"},
      {"a Ping that is no Ping", bytesOf({FrameKind::ping, "\xff"}), "bad-metadata"},
  };
  for (const Case& damage : cases) {
    INFO(damage.name);
    Raw raw;
    raw.send(damage.bytes + std::string(100, 'u'));  // with what is never read
    raw.collect();
    const Outcome outcome = raw.run();
    CHECK(outcome.code == damage.code);
    CHECK(raw.failureCode() == damage.code);
    CHECK(raw.sink.controls.empty());
    CHECK(raw.sink.tensors.empty());
  }
}

TEST_CASE("a stream that ends in the middle of a frame, or without a Bye, is an error") {
  const std::string step = bytesOf({FrameKind::step, "decision", "", 0, kFlagChecksum});
  Raw raw;
  SECTION("in the header") {
    raw.send(step + step.substr(0, 10));
    raw.peer.close();
    CHECK(raw.run().text.find("in the middle of a frame") != std::string::npos);
  }
  SECTION("in the metadata") {
    raw.send(step + step.substr(0, 35));
    raw.peer.close();
    CHECK(raw.run().text.find("in the middle of a frame") != std::string::npos);
  }
  SECTION("between frames") {
    raw.send(step);
    raw.peer.close();
    CHECK(raw.run().text.find("without a Bye") != std::string::npos);
  }
  CHECK(raw.outcome.code == "connection-closed");
  CHECK(raw.outcome.text.starts_with("127.0.0.1:"));
  CHECK(raw.sink.controls.size() == 1);
}

TEST_CASE("a reset is a lost connection, with the system's text and the peer's address") {
  Raw raw;
  raw.start(raw.connection, raw.sink, raw.outcome);
  raw.settle();
  raw.reset();
  raw.runUntil([&] { return raw.outcome.done; });
  CHECK(raw.outcome.code == "connection-lost");
  CHECK(raw.outcome.text.find("Connection reset by peer") != std::string::npos);
  CHECK(raw.outcome.text.find("127.0.0.1:") != std::string::npos);
}

// ---- Failures ----

TEST_CASE("what the sink throws ends run(), and the peer's run() with the same code") {
  Pair pair;
  pair.sinkB.onFrame = [](const FrameHeader&) {
    throw ProtocolError("step-gap", "a step is missing", "send it");
  };
  pair.a.outbox().pushControl(FrameKind::step, "decision");
  pair.startBoth();
  pair.finish();
  CHECK(pair.outcomeB.code == "step-gap");
  CHECK(pair.outcomeA.code == "step-gap");
  CHECK(pair.outcomeA.text == "a step is missing");
  CHECK(pair.outcomeA.fix == "send it");
}

TEST_CASE("what is not an Error ends run() as one") {
  Raw raw;
  raw.sink.onFrame = [](const FrameHeader&) { throw std::runtime_error("out of paper"); };
  raw.send(bytesOf({FrameKind::step, "decision"}));
  raw.collect();
  CHECK(raw.run().code == "internal-error");
  CHECK(raw.outcome.text == "out of paper");
  CHECK(raw.failureCode() == "internal-error");
}

TEST_CASE("fail() ends run() with the first cause, before run() and within") {
  const auto error = [](const char* code) {
    return std::make_exception_ptr(RunError(code, "sentence"));
  };
  Raw raw;
  raw.collect();
  SECTION("before") {
    raw.connection.fail(error("first"));
    raw.connection.fail(error("second"));
    raw.run();
  }
  SECTION("within") {
    raw.start(raw.connection, raw.sink, raw.outcome);
    raw.settle();
    raw.connection.fail(error("first"));
    raw.connection.fail(error("second"));
    raw.runUntil([&] { return raw.outcome.done; });
    raw.settle();
  }
  CHECK(raw.outcome.code == "first");
  CHECK(raw.failureCode() == "first");
}

TEST_CASE("a Failure goes ahead of a tensor that is under way, after the frame begun") {
  Pair pair({}, {}, 4096);
  pair.send(pair.b, "big", randomBytes(std::size_t{16} << 20, 1));
  pair.start(pair.b, pair.sinkB, pair.outcomeB);
  pair.settle();
  pair.b.fail(std::make_exception_ptr(RunError("no-luck", "sentence")));
  pair.start(pair.a, pair.sinkA, pair.outcomeA);
  pair.finish();
  CHECK(pair.outcomeB.code == "no-luck");
  CHECK(pair.outcomeA.code == "no-luck");
  CHECK(pair.a.bytes().tensorReceived < std::size_t{16} << 20);
}

TEST_CASE("fail() ends run() although the peer reads nothing and a frame is stuck") {
  Pair pair({}, {}, 4096);
  pair.send(pair.b, "big", randomBytes(std::size_t{16} << 20, 1));
  pair.start(pair.b, pair.sinkB, pair.outcomeB);
  pair.settle();
  pair.b.fail(std::make_exception_ptr(RunError("no-luck", "sentence")));
  pair.runUntil([&] { return pair.outcomeB.done; });
  CHECK(pair.outcomeB.code == "no-luck");
  // What the peer finds then is a stream that breaks off.
  pair.start(pair.a, pair.sinkA, pair.outcomeA);
  pair.runUntil([&] { return pair.outcomeA.done; });
  CHECK((pair.outcomeA.code == "connection-closed" || pair.outcomeA.code == "connection-lost"));
}

TEST_CASE("the peer's Failure is heard although the peer has closed on our writing") {
  Raw raw({}, 4096);
  OutgoingTensor tensor;
  auto bytes = std::make_shared<const Bytes>(std::size_t{16} << 20);
  tensor.bytes = *bytes;
  tensor.owner = bytes;
  tensor.openMetadata = [](double) { return std::string(); };
  tensor.written = [](std::uint64_t) {};
  raw.connection.outbox().pushTensor(std::move(tensor));
  raw.start(raw.connection, raw.sink, raw.outcome);
  raw.settle();
  raw.send(bytesOf({FrameKind::failure, failureText("bad-tensor", "too long\x1b[2J", "cut it")}));
  raw.peer.close();  // with unread bytes: a reset
  raw.runUntil([&] { return raw.outcome.done; });
  CHECK(raw.outcome.code == "bad-tensor");
  CHECK(raw.outcome.text == "too long [2J");  // no escape sequences reach the log
  CHECK(raw.outcome.fix == "cut it");
}

TEST_CASE("a peer that makes us answer and lets the answers wait is cut off") {
  Raw raw;
  raw.sink.onFrame = [&](const FrameHeader&) {
    for (std::size_t j = 0; j <= kMaxQueued; ++j) {
      raw.connection.outbox().pushControl(FrameKind::stepOk, {});
    }
  };
  raw.send(bytesOf({FrameKind::step, "decision"}));
  raw.collect();
  CHECK(raw.run().code == "not-reading");
  CHECK(raw.failureCode() == "not-reading");
}

// ---- Pings ----

TEST_CASE("a Ping is answered with both sides' times, ahead of tensors") {
  Raw raw({}, 4096);
  wire::Ping ping;
  ping.set_sent(42);
  raw.send(bytesOf({FrameKind::ping, ping.SerializeAsString()}) +
           bytesOf({FrameKind::bye, byeText("done")}));
  raw.collect();
  CHECK(raw.run().code == "");
  const auto frames = raw.frames();
  REQUIRE(frames.size() == 2);
  REQUIRE(frames[0].kind == FrameKind::pong);
  wire::Pong pong;
  REQUIRE(pong.ParseFromString(frames[0].metadata));
  CHECK(pong.ping_sent() == 42);
  CHECK(pong.ping_received() > 0);
  CHECK(pong.sent() >= pong.ping_received());
  CHECK(raw.sink.controls.empty());
}

TEST_CASE("connections ping each other, and stay up") {
  Pair pair(pinging(5ms, kPatience), pinging(5ms, kPatience));
  pair.startBoth();
  const std::size_t least = 20 * kHeaderBytes;
  pair.runUntil([&] {
    return pair.a.bytes().controlReceived > least && pair.b.bytes().controlReceived > least;
  });
  pair.a.sayBye("done");
  pair.finish();
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
  CHECK(pair.a.bytes().controlSent == pair.b.bytes().controlReceived);
}

TEST_CASE("a peer that falls silent is pinged, then given up") {
  Raw raw(pinging(20ms, 100ms));
  raw.collect();
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "peer-silent");
  CHECK(outcome.text.find("120 ms") != std::string::npos);
  REQUIRE(!raw.frames().empty());
  CHECK(raw.frames().front().kind == FrameKind::ping);
  CHECK(raw.failureCode() == "peer-silent");
}
