// Connections with damaged data, network failures, and faults of either side.
#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/net/connection.h"
#include "tests/support/network/loopback.h"

using namespace cleave;
using namespace std::chrono_literals;

namespace {

// The bytes with one byte replaced.
std::string damaged(std::string bytes, std::size_t at, int value) {
  bytes.at(at) = static_cast<char>(value);
  return bytes;
}

// A header that declares these lengths; no data follows.
std::string claim(FrameKind kind, std::uint32_t metadataBytes, std::uint32_t payloadBytes,
                  std::uint64_t stream = 0) {
  FrameHeader header;
  header.kind = kind;
  header.metadataBytes = metadataBytes;
  header.payloadBytes = payloadBytes;
  header.stream = stream;
  return asText(encodeHeader(header));
}

}  // namespace

TEST_CASE("damage during the handshake ends it with a code of its own, and the peer is notified") {
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
      {"wrong version", damaged(hello, 4, kWireVersion + 1), "version-mismatch"},
      {"unknown kind", damaged(hello, 5, 99), "unknown-frame"},
      {"unknown flags", damaged(hello, 7, 1), "bad-frame"},
      {"a stream number", damaged(hello, 16, 1), "bad-frame"},
      {"too much metadata", claim(FrameKind::hello, kMaxHandshakeBytes - kHeaderBytes + 1, 0),
       "frame-too-large"},
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

TEST_CASE("a peer that closes within its Hello is reported as closed") {
  Raw raw;
  raw.send(bytesOf({FrameKind::hello, "hi"}).substr(0, 33));
  raw.peer.close();
  Connection::HandshakeFrame frame;
  const Outcome outcome = raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame);
  CHECK(outcome.code == "connection-closed");
  CHECK(outcome.text.find("before the handshake was done") != std::string::npos);
}

TEST_CASE("a peer that sends no Hello in time is notified") {
  ConnectionOptions options;
  options.helloDeadline = 50ms;
  Raw raw(options);
  raw.collect();
  Connection::HandshakeFrame frame;
  SECTION("nothing") {}
  SECTION("a part of the Hello") { raw.send(bytesOf({FrameKind::hello, "hi"}).substr(0, 20)); }
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
    CHECK(outcome.hint == "how");
  }
}

TEST_CASE("a Hello that no server would accept is not sent") {
  Raw raw;
  const std::string tooLong(kMaxHandshakeBytes - kHeaderBytes + 1, 'x');
  CHECK(raw.writeHandshake(raw.connection, FrameKind::hello, tooLong).code == "frame-too-large");
  CHECK(raw.connection.bytes().controlSent == 0);
  const std::string longest(kMaxHandshakeBytes - kHeaderBytes, 'x');
  CHECK(raw.writeHandshake(raw.connection, FrameKind::hello, longest).code == "");
  CHECK(raw.connection.bytes().controlSent == kMaxHandshakeBytes);
}

TEST_CASE(
    "damage after the handshake ends run() with a code of its own, and the peer is notified") {
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
      {"the checksum without its flag", damaged(step, 6, 0), "bad-frame"},
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
      {"an invalid Ping", bytesOf({FrameKind::ping, "\xff"}), "bad-metadata"},
  };
  for (const Case& damage : cases) {
    INFO(damage.name);
    Raw raw;
    raw.send(damage.bytes + std::string(100, 'u'));  // the trailing data is never read
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

TEST_CASE("an exception from the sink ends run(), and the peer's run() with the same code") {
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
  CHECK(pair.outcomeA.hint == "send it");
}

TEST_CASE("an exception that is not an Error ends run() as an Error") {
  Raw raw;
  raw.sink.onFrame = [](const FrameHeader&) { throw std::runtime_error("out of paper"); };
  raw.send(bytesOf({FrameKind::step, "decision"}));
  raw.collect();
  CHECK(raw.run().code == "internal-error");
  CHECK(raw.outcome.text == "out of paper");
  CHECK(raw.failureCode() == "internal-error");
}

TEST_CASE("fail() ends run() with the first cause, whether called before or during run()") {
  const auto error = [](const char* code) {
    return std::make_exception_ptr(RunError(code, "sentence"));
  };
  Raw raw;
  raw.collect();
  SECTION("before run()") {
    raw.connection.fail(error("first"));
    raw.connection.fail(error("second"));
    raw.run();
  }
  SECTION("during run()") {
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

TEST_CASE("a Failure overtakes a tensor that is being sent, after the current frame") {
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

TEST_CASE("fail() ends run() even if the peer reads nothing and a frame is stuck") {
  Pair pair({}, {}, 4096);
  pair.send(pair.b, "big", randomBytes(std::size_t{16} << 20, 1));
  pair.start(pair.b, pair.sinkB, pair.outcomeB);
  pair.settle();
  pair.b.fail(std::make_exception_ptr(RunError("no-luck", "sentence")));
  pair.runUntil([&] { return pair.outcomeB.done; });
  CHECK(pair.outcomeB.code == "no-luck");
  // The peer receives a truncated stream.
  pair.start(pair.a, pair.sinkA, pair.outcomeA);
  pair.runUntil([&] { return pair.outcomeA.done; });
  CHECK((pair.outcomeA.code == "connection-closed" || pair.outcomeA.code == "connection-lost"));
}

TEST_CASE("the peer's Failure is received even if our write failed on its closed socket") {
  Raw raw({}, 4096);
  OutgoingTensor tensor;
  auto bytes = std::make_shared<const Bytes>(std::size_t{16} << 20);
  tensor.bytes = *bytes;
  tensor.owner = bytes;
  tensor.openMetadata = [](double) { return std::string(); };
  tensor.written = [] {};
  raw.connection.outbox().pushTensor(std::move(tensor));
  raw.start(raw.connection, raw.sink, raw.outcome);
  raw.settle();
  raw.send(bytesOf({FrameKind::failure, failureText("bad-tensor", "too long\x1b[2J", "cut it")}));
  raw.peer.close();  // unread bytes make the kernel send a reset
  raw.runUntil([&] { return raw.outcome.done; });
  CHECK(raw.outcome.code == "bad-tensor");
  CHECK(raw.outcome.text == "too long?[2J");  // the escape sequence is not logged
  CHECK(raw.outcome.hint == "cut it");
}

TEST_CASE("a peer that causes replies but does not read them is disconnected") {
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
