// Connections: normal operation, Bye, Pings, and limits on a peer.
#include "common/net/connection.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/network/loopback.h"

using namespace cleave;
using namespace std::chrono_literals;
using boost::asio::ip::tcp;

namespace {

ConnectionOptions pinging(std::chrono::milliseconds every, std::chrono::milliseconds timeout) {
  ConnectionOptions options;
  options.pingEvery = every;
  options.pingTimeout = timeout;
  return options;
}

// Repeatedly sends a frame from the peer.
class Trickle {
 public:
  Trickle(Raw& raw, std::chrono::milliseconds every, std::function<std::string()> text)
      : raw_(raw), every_(every), text_(std::move(text)), timer_(raw.peer.get_executor()) {
    next();
  }

 private:
  void next() {
    timer_.expires_after(every_);
    timer_.async_wait([this](boost::system::error_code error) {
      if (!error) boost::asio::write(raw_.peer, boost::asio::buffer(text_()), error);
      if (!error) next();
    });
  }

  Raw& raw_;
  const std::chrono::milliseconds every_;
  const std::function<std::string()> text_;
  boost::asio::steady_timer timer_;
};

}  // namespace

// ---- Normal operation ----

TEST_CASE("tensors in both directions at once arrive intact, and both sides count every byte") {
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

TEST_CASE("an urgent tensor overtakes one that is being sent to a slow reader") {
  Pair pair({}, {}, 4096);
  const Bytes big = randomBytes(std::size_t{16} << 20, 1);
  pair.send(pair.b, "big", big, 2);
  pair.start(pair.b, pair.sinkB, pair.outcomeB);
  pair.settle();  // the kernel accepts no more
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

TEST_CASE("data in the same packet as the handshake is not lost") {
  Raw raw;
  raw.send(bytesOf({FrameKind::hello, "hi"}) + bytesOf({FrameKind::step, "decision"}) +
           bytesOf({FrameKind::bye, byeText("done")}));
  raw.collect();
  Connection::HandshakeFrame frame;
  CHECK(raw.readHandshake(raw.connection, ConnectionState::awaitingHello, frame).code == "");
  CHECK(raw.run().code == "");
  CHECK(raw.sink.controls == std::vector{std::pair(FrameKind::step, std::string("decision"))});
}

TEST_CASE("a frame that arrives byte by byte is one frame") {
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

TEST_CASE("the kernel's figures and the peer's name are available, even after the end") {
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

TEST_CASE("Bye from either side ends both, and each receives the other's reason") {
  Pair pair;
  pair.startBoth();
  pair.settle();
  SECTION("a says Bye first") {
    pair.a.sayBye("interrupted");
    pair.finish();
    CHECK(pair.outcomeB.reason == "interrupted");
    CHECK(pair.outcomeA.reason == "done");
  }
  SECTION("b says Bye first") {
    pair.b.sayBye("shutting-down");
    pair.finish();
    CHECK(pair.outcomeA.reason == "shutting-down");
    CHECK(pair.outcomeB.reason == "done");
  }
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
}

TEST_CASE("crossing Byes end both sides, even if sent before run()") {
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

TEST_CASE("Bye arrives after everything that was queued, on both sides") {
  Pair pair;
  pair.send(pair.a, "from a", randomBytes(std::size_t{2} << 20, 1));
  pair.send(pair.b, "from b", randomBytes(std::size_t{2} << 20, 2), 0, std::string(32, 's'));
  pair.a.sayBye("done");
  pair.startBoth();
  pair.finish();
  CHECK(pair.sinkB.order == std::vector<std::string>{"from a"});
  CHECK(pair.sinkA.order == std::vector<std::string>{"from b"});
}

TEST_CASE("after our Bye, the end of the stream counts as the peer's Bye") {
  Raw raw;
  raw.connection.sayBye("interrupted");
  raw.start(raw.connection, raw.sink, raw.outcome);
  raw.settle();
  SECTION("the peer closes") { raw.peer.shutdown(tcp::socket::shutdown_send); }
  SECTION("the peer resets") { raw.reset(); }
  raw.runUntil([&] { return raw.outcome.done; });
  CHECK(raw.outcome.code == "");
  CHECK(raw.outcome.reason == "interrupted");
}

TEST_CASE("the wait for the answer to our Bye is short") {
  Raw raw;
  raw.connection.sayBye("done");
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "");
  CHECK(outcome.reason == "done");
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

TEST_CASE("idle connections send each other Pings and stay open") {
  Pair pair(pinging(5ms, kPatience), pinging(5ms, kPatience));
  pair.startBoth();
  const std::size_t min = 20 * kHeaderBytes;
  pair.runUntil(
      [&] { return pair.a.bytes().controlReceived > min && pair.b.bytes().controlReceived > min; });
  pair.a.sayBye("done");
  pair.finish();
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
  CHECK(pair.a.bytes().controlSent == pair.b.bytes().controlReceived);
}

TEST_CASE("Pings do not count as activity, but other frames do") {
  Raw raw(pinging(10ms, 60s));
  raw.collect();
  const SteadyTime start = raw.connection.lastActivity();
  raw.start(raw.connection, raw.sink, raw.outcome);
  const std::string ping = pingMetadata();
  const std::string pong = pongMetadata(std::as_bytes(std::span(ping)));
  raw.send(bytesOf({FrameKind::ping, ping}) + bytesOf({FrameKind::pong, pong}));
  raw.runUntil([&] { return raw.frames().size() > 2; });  // the connection's own Pings, and a Pong
  CHECK(raw.connection.lastActivity() == start);
  raw.send(bytesOf({FrameKind::step, "decision"}));
  raw.runUntil([&] { return !raw.sink.controls.empty(); });
  const SteadyTime received = raw.connection.lastActivity();
  CHECK(received > start);
  raw.connection.outbox().pushControl(FrameKind::stepOk, "ok");
  raw.connection.wake();
  raw.runUntil([&] { return raw.connection.lastActivity() > received; });
  raw.peer.close();
  raw.runUntil([&] { return raw.outcome.done; });
}

TEST_CASE("a silent peer is sent Pings, and then the connection is closed") {
  Raw raw(pinging(20ms, 100ms));
  raw.collect();
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "peer-silent");
  CHECK(outcome.text.find("0.12 s") != std::string::npos);
  REQUIRE(!raw.frames().empty());
  CHECK(raw.frames().front().kind == FrameKind::ping);
  CHECK(raw.failureCode() == "peer-silent");
}

TEST_CASE("a peer that sends but answers no Ping is disconnected") {
  Raw raw(pinging(20ms, 100ms));
  const std::string step = bytesOf({FrameKind::step, "decision"});
  Trickle trickle(raw, 10ms, [&] { return step; });
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "peer-silent");
  CHECK(outcome.text.find("answered no Ping for 0.12 s") != std::string::npos);
}

// ---- Limits on a peer ----

TEST_CASE("a frame that arrives too slowly is refused") {
  ConnectionOptions options;
  options.frame.grace = 50ms;
  Raw raw(options);
  raw.collect();
  const std::string ping = bytesOf({FrameKind::ping, wire::Ping().SerializeAsString()});
  std::size_t at = 0;
  Trickle trickle(raw, 10ms, [&] { return ping.substr(at++ % ping.size(), 1); });
  CHECK(raw.run().code == "too-slow");
  CHECK(raw.failureCode() == "too-slow");
}

TEST_CASE("a flood of Pings ends the connection") {
  Raw raw;
  raw.collect();
  std::string flood;
  for (int i = 0; i < 1000; ++i) {
    flood += bytesOf({FrameKind::ping, wire::Ping().SerializeAsString()});
  }
  raw.send(flood);
  CHECK(raw.run().code == "flood");
  CHECK(raw.failureCode() == "flood");
}

TEST_CASE("a peer that sends but never reads is disconnected") {
  ConnectionOptions options = pinging(20ms, 80ms);
  options.frame.bytesPerSecond = 1e9;  // this rate also limits how slowly the peer may read
  Raw raw(options, 4096);
  const std::string pong = bytesOf({FrameKind::pong, wire::Pong().SerializeAsString()});
  OutgoingTensor tensor;
  const auto bytes = std::make_shared<Bytes>(std::size_t{32} << 20);
  tensor.bytes = *bytes;
  tensor.owner = bytes;
  tensor.openMetadata = [](double) { return std::string(); };
  raw.connection.outbox().pushTensor(std::move(tensor));
  Trickle trickle(raw, 50ms, [&] { return pong; });
  const Outcome outcome = raw.run();
  CHECK(outcome.code == "not-reading");
}
