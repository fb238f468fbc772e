// The two ends of a probe session: normal operation, and hostile peers.
#include "common/link/probe/probe_link.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/network/loopback.h"

using namespace cleave;

namespace {

std::string tensorText(std::uint64_t number, std::uint64_t bytes,
                       const std::string& phase = "probe", const std::string& flow = "probe") {
  wire::Tensor tensor;
  tensor.mutable_key()->set_phase(phase);
  tensor.mutable_key()->set_flow(flow);
  tensor.mutable_key()->set_step(number);
  tensor.set_encoded_bytes(bytes);
  return tensor.SerializeAsString();
}

std::string segmentText(std::uint64_t offset, const std::string& sha256 = "") {
  wire::Segment segment;
  segment.set_offset(offset);
  segment.set_sha256(sha256);
  return segment.SerializeAsString();
}

std::string fetchText(std::uint64_t bytes, const std::string& flow = "probe") {
  wire::Fetch fetch;
  fetch.set_flow(flow);
  fetch.set_bytes(bytes);
  return fetch.SerializeAsString();
}

std::string receivedText(std::uint64_t number, double seconds = 0) {
  wire::Received received;
  received.mutable_key()->set_phase("probe");
  received.mutable_key()->set_flow("probe");
  received.mutable_key()->set_step(number);
  received.set_wire_seconds(seconds);
  return received.SerializeAsString();
}

std::string tensor(std::uint64_t number, std::uint64_t bytes, std::size_t payload,
                   std::uint64_t stream = 1) {
  return bytesOf({FrameKind::tensor, tensorText(number, bytes), std::string(payload, 'x'), stream});
}

std::string segment(std::uint64_t offset, std::size_t payload, std::uint64_t stream = 1) {
  return bytesOf({FrameKind::segment, segmentText(offset), std::string(payload, 'x'), stream});
}

std::string fetch(std::uint64_t bytes) { return bytesOf({FrameKind::fetch, fetchText(bytes)}); }

// A raw peer on one side, and a probe link on the other.
class RawProbe : public Raw {
 public:
  explicit RawProbe(Role role)
      : link(role, connection,
             [this](const ProbeLink::Finished& stream) { finished.push_back(stream); }) {}

  // Sends these bytes to the link. Returns the error code that the link sends to its peer when it
  // ends.
  std::string codeFor(const std::string& bytes) {
    send(bytes);
    collect();
    start(connection, link, outcome);
    runUntil([&] { return outcome.done; });
    settle();
    CHECK(failureCode() == outcome.code);
    return outcome.code;
  }

  std::vector<ProbeLink::Finished> finished;
  ProbeLink link;
};

std::string serverCode(const std::string& bytes) { return RawProbe(Role::server).codeFor(bytes); }

}  // namespace

TEST_CASE(
    "streams of any size cross in both directions at once, and both ends measure their times") {
  Pair pair;
  std::vector<ProbeLink::Finished> atClient, atServer;
  ProbeLink client(Role::client, pair.a, [&](const auto& stream) { atClient.push_back(stream); });
  ProbeLink server(Role::server, pair.b, [&](const auto& stream) { atServer.push_back(stream); });
  pair.start(pair.a, client, pair.outcomeA);
  pair.start(pair.b, server, pair.outcomeB);
  std::size_t streams = 0;
  for (const std::uint64_t bytes : {0, 1, 1000, 1 << 20, 30'000'000}) {
    client.fetch(bytes);
    client.send(bytes);
    streams += 2;
    pair.runUntil([&] { return atClient.size() == streams; });
    for (const bool up : {true, false}) {
      const auto& stream =
          atClient[streams - 1].up == up ? atClient[streams - 1] : atClient[streams - 2];
      CHECK(stream.up == up);
      CHECK(stream.bytes == bytes);
      CHECK(stream.receiverSeconds >= 0);
    }
  }
  pair.a.sayBye("done");
  pair.finish();
  CHECK(pair.outcomeA.code == "");
  CHECK(pair.outcomeB.code == "");
  CHECK(atServer.size() == streams);
  CHECK(pair.a.bytes().tensorSent > 31'000'000);
  CHECK(pair.b.bytes().tensorSent == pair.a.bytes().tensorReceived);
}

TEST_CASE("each kind of invalid message to a probe's server ends the session with its own code") {
  struct Case {
    std::string name;
    std::string bytes;
    std::string code;
  };
  const std::string sha(32, 's');
  const std::vector<Case> cases = {
      {"more than may be requested", fetch(kMaxProbeBytes + 1), "probe-too-large"},
      {"the maximum of 64 bits", fetch(~std::uint64_t{0}), "probe-too-large"},
      {"a stream of more than may be sent", tensor(1, kMaxProbeBytes + 1, 1), "probe-too-large"},
      {"a Fetch before the end of the last one", fetch(1000) + fetch(1000), "too-many-in-flight"},
      {"a second stream within the first", tensor(1, 10, 1) + tensor(2, 10, 1, 2),
       "too-many-in-flight"},
      {"a stream that does not end", tensor(1, 10, 5) + segment(5, 5) + segment(10, 1),
       "unknown-stream"},
      {"a segment beyond the end of its stream", tensor(1, 10, 5) + segment(5, 6), "bad-segment"},
      {"a first segment that is too long", tensor(1, 10, 11), "bad-segment"},
      {"an empty segment", tensor(1, 10, 5) + segment(5, 0), "bad-segment"},
      {"a segment out of order", tensor(1, 10, 5) + segment(6, 1), "bad-segment"},
      {"a digest", tensor(1, 10, 5) + bytesOf({FrameKind::segment, segmentText(5, sha), "x", 1}),
       "bad-segment"},
      {"a segment without a stream", segment(0, 1), "unknown-stream"},
      {"a repeated stream number", tensor(1, 1, 1) + tensor(2, 1, 1), "bad-segment"},
      {"a skipped stream number", tensor(2, 1, 1), "bad-key"},
      {"a run's tensor",
       bytesOf({FrameKind::tensor, tensorText(1, 1, "train", "activation/0"), "x", 1}), "bad-key"},
      {"a run's Fetch", bytesOf({FrameKind::fetch, fetchText(0, "weights/body")}),
       "unexpected-message"},
      {"a run's Step", bytesOf({FrameKind::step, ""}), "unexpected-message"},
      {"a server's StepOk", bytesOf({FrameKind::stepOk, ""}), "unexpected-message"},
      {"a Received without a transfer", bytesOf({FrameKind::received, receivedText(1)}),
       "unexpected-message"},
      {"invalid seconds", fetch(0) + bytesOf({FrameKind::received, receivedText(1, -1)}),
       "bad-metadata"},
      {"invalid protobuf", bytesOf({FrameKind::fetch, "\xff\xff"}), "bad-metadata"},
      {"a second Hello", bytesOf({FrameKind::hello, ""}), "unexpected-frame"},
  };
  for (const Case& damage : cases) {
    INFO(damage.name);
    CHECK(serverCode(damage.bytes) == damage.code);
  }
}

TEST_CASE("a stream with a codec or a spec is refused in a probe") {
  wire::Tensor open;
  REQUIRE(open.ParseFromString(tensorText(1, 1)));
  SECTION("codec") { open.set_codec("none"); }
  SECTION("spec") { open.mutable_spec()->set_dtype("f32"); }
  CHECK(serverCode(bytesOf({FrameKind::tensor, open.SerializeAsString(), "x", 1})) == "bad-tensor");
}

TEST_CASE("premature acknowledgements do not let a probe accumulate streams") {
  // The peer requests streams of one gigabyte and does not read them.
  std::string bytes;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    bytes += fetch(kMaxProbeBytes) + bytesOf({FrameKind::received, receivedText(number)});
  }
  RawProbe raw(Role::server);
  raw.send(bytes);
  CHECK(raw.run(raw.link).code == "too-many-in-flight");
}

TEST_CASE("a probe's client accepts only the requested streams") {
  const auto code = [](std::optional<std::uint64_t> asked, const std::string& bytes) {
    RawProbe raw(Role::client);
    if (asked) raw.link.fetch(*asked);
    return raw.codeFor(bytes);
  };
  CHECK(code({}, tensor(1, 10, 10)) == "unexpected-message");
  CHECK(code(10, tensor(1, 11, 11)) == "bad-tensor");
  CHECK(code(10, tensor(2, 10, 10)) == "bad-key");
  CHECK(code(10, fetch(10)) == "unexpected-message");
  CHECK(code(10, tensor(1, 10, 10) + tensor(2, 10, 10, 2)) == "unexpected-message");
}
