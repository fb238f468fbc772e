// Traces: recording, encoding, data that a hostile server may send, and the trace file.
#include "common/engine/trace.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "common/record/trace_file.h"
#include "proto/wire.pb.h"
#include "tests/support/files/trace_checks.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;

const SteadyTime kStart{std::chrono::hours(1)};
constexpr TraceWindow kWindow{2, 3};
constexpr std::uint32_t kMicroBatches = 2;

SteadyTime at(int ms) { return kStart + milliseconds(ms); }
MicroBatch batchAt(std::uint64_t step, std::uint32_t i) {
  return {Phase::train, step, i, {kMicroBatches, 4}};
}
std::int64_t nanosecondsAt(int ms) {
  return std::chrono::nanoseconds(at(ms).time_since_epoch()).count();
}

// ---- Recording ----

TEST_CASE("a recorder records the training steps of its window") {
  TraceRecorder recorder(kWindow);
  for (std::uint64_t step = 1; step <= 6; ++step) {
    recorder.ran(ActionKind::bodyForward, batchAt(step, 0), {}, at(10 * int(step)), 1e-3);
    recorder.moved(TraceActivity::decode, {Phase::train, step, 0, activationAt(0)}, at(0), at(1));
    recorder.moved(TraceActivity::decode, {Phase::eval, step, 0, activationAt(0)}, at(0), at(1));
  }
  // Transfers of blobs, such as weights, and actions outside steps are not recorded.
  recorder.moved(TraceActivity::receive, {Phase::train, 3, 0, kWeightsBody}, at(0), at(1));
  recorder.ran(ActionKind::exportBlob, batchAt(3, 0), {}, at(90), 1e-3);
  std::vector<std::uint64_t> steps;
  for (const TraceSpan& span : recorder.trace().spans) steps.push_back(span.step);
  CHECK(steps == std::vector<std::uint64_t>{2, 2, 3, 3, 4, 4});
}

TEST_CASE("a device's waiting time lies between two actions, and ends when the second begins") {
  TraceRecorder recorder(kWindow);
  recorder.ran(ActionKind::headForward, batchAt(2, 0), at(0), at(5),
               5e-3);  // the first action of a batch
  recorder.ran(ActionKind::headForward, batchAt(2, 1), {}, at(10), 5e-3);
  recorder.ran(ActionKind::tailStep, batchAt(2, 0), at(11), at(20), 4e-3);
  // On a GPU, an action can be issued while the previous one is still running. Its start, computed
  // from its measured seconds, may then be before the end of the previous action.
  recorder.ran(ActionKind::tailStep, batchAt(2, 1), at(17), at(23), 4e-3);
  const std::vector<TraceSpan> spans = recorder.trace().spans;
  REQUIRE(spans.size() == 5);
  CHECK(spans[2].activity == TraceActivity::wait);
  CHECK(spans[2].action() == ActionKind::tailStep);
  CHECK(spans[2].begin == nanosecondsAt(11));
  CHECK(spans[2].end == nanosecondsAt(16));
  CHECK(spans[3].begin == nanosecondsAt(16));
  CHECK(spans[4].activity == TraceActivity::compute);
  CHECK(spans[4].begin == nanosecondsAt(20));
}

TEST_CASE("consecutive segments of a tensor are one span, until another tensor intervenes") {
  TraceRecorder recorder(kWindow);
  const Key slow{Phase::train, 2, 0, activationAt(0)}, urgent{Phase::train, 2, 0, gradientAt(1)};
  recorder.moved(TraceActivity::send, slow, at(0), at(1));
  recorder.moved(TraceActivity::send, slow, at(2), at(3));
  recorder.moved(TraceActivity::queue, urgent, at(2), at(4));
  recorder.moved(TraceActivity::send, urgent, at(4), at(5));
  recorder.moved(TraceActivity::send, slow, at(5), at(6));
  const std::vector<TraceSpan> spans = recorder.trace().spans;
  REQUIRE(spans.size() == 4);
  CHECK(spans[0].begin == nanosecondsAt(0));
  CHECK(spans[0].end == nanosecondsAt(3));
  CHECK(spans[3].flow() == activationAt(0));
}

TEST_CASE("a recorder is bounded, and counts dropped events") {
  TraceRecorder recorder({1, kMaxTraceSteps});
  const std::size_t beyond = 10;
  for (std::uint32_t n = 0; n < kMaxTraceSpans + beyond; ++n) {
    recorder.moved(TraceActivity::encode, {Phase::train, 1, n, activationAt(1)}, at(0), at(1));
  }
  CHECK(recorder.trace().spans.size() == kMaxTraceSpans);
  CHECK(recorder.trace().dropped == beyond);
  CHECK(toBytes(recorder.trace()).size() == kMaxTraceBytes);
}

// ---- On the wire ----

TraceSpan serverSpan() { return {TraceActivity::decode, 3, 0, 1, 3, 500, 700}; }

TEST_CASE("a trace survives encoding and decoding, in the documented layout") {
  Trace trace;
  trace.dropped = 5;
  trace.spans = {serverSpan()};
  const std::vector<std::byte> bytes = toBytes(trace);
  std::vector<int> numbers;
  for (const std::byte byte : bytes) numbers.push_back(static_cast<int>(byte));
  CHECK(numbers == std::vector<int>{5, 0, 0, 0, 0,    0, 0, 0, 6, 3, 0,    0, 1, 0,
                                    0, 0, 3, 0, 0,    0, 0, 0, 0, 0, 0xf4, 1, 0, 0,
                                    0, 0, 0, 0, 0xbc, 2, 0, 0, 0, 0, 0,    0});
  const Trace again = traceFromServer(bytes, kWindow, kMicroBatches, Place{});
  CHECK(again.dropped == 5);
  REQUIRE(again.spans.size() == 1);
  CHECK(std::memcmp(&again.spans[0], &trace.spans[0], sizeof(TraceSpan)) == 0);
  CHECK(traceFromServer(toBytes({}), kWindow, kMicroBatches, Place{}).spans.empty());
}

bool isRefused(const std::vector<std::byte>& bytes) {
  try {
    traceFromServer(bytes, kWindow, kMicroBatches, Place{});
    return false;
  } catch (const ProtocolError& error) {
    CHECK(error.code() == "bad-trace");
    return true;
  }
}

TEST_CASE("a trace of the wrong length is refused") {
  std::vector<std::byte> bytes = toBytes({{serverSpan()}, 0});
  CHECK_FALSE(isRefused(bytes));
  bytes.pop_back();
  CHECK(isRefused(bytes));
  CHECK(isRefused({}));
  CHECK(isRefused(std::vector<std::byte>(7)));
  CHECK(isRefused(std::vector<std::byte>(kMaxTraceBytes + sizeof(TraceSpan))));
}

TEST_CASE("a span that no server can have recorded is refused") {
  const auto damaged = [](auto change) {
    TraceSpan span = serverSpan();
    change(span);
    return isRefused(toBytes({{serverSpan(), span}, 0}));
  };
  CHECK_FALSE(damaged([](TraceSpan&) {}));
  CHECK(damaged([](TraceSpan& s) { s.activity = static_cast<TraceActivity>(7); }));
  CHECK(damaged([](TraceSpan& s) { s.activity = static_cast<TraceActivity>(255); }));
  CHECK(damaged([](TraceSpan& s) { s.subject = 4; }));
  CHECK(damaged([](TraceSpan& s) { s.subject = 255; }));
  CHECK(damaged([](TraceSpan& s) {
    s.activity = TraceActivity::encode;
  }));  // the server does not send gradient/1
  CHECK(damaged([](TraceSpan& s) { s.tensor = 1; }));
  CHECK(damaged([](TraceSpan& s) { s.i = kMicroBatches; }));
  CHECK(damaged([](TraceSpan& s) { s.step = 1; }));
  CHECK(damaged([](TraceSpan& s) { s.step = 5; }));
  CHECK(damaged([](TraceSpan& s) { s.step = ~std::uint64_t{0}; }));
  CHECK(damaged([](TraceSpan& s) { s.end = 499; }));
  CHECK(damaged([](TraceSpan& s) { s.begin = -1; }));
  CHECK(damaged([](TraceSpan& s) { s.end = std::numeric_limits<std::int64_t>::max(); }));
  for (const TraceActivity activity : {TraceActivity::compute, TraceActivity::wait}) {
    for (std::uint8_t kind = 0; kind < 20; ++kind) {
      const auto action = static_cast<ActionKind>(kind);
      const bool fits = action == ActionKind::bodyForward || action == ActionKind::bodyBackward ||
                        action == ActionKind::bodyWeights || action == ActionKind::report ||
                        action == ActionKind::update || action == ActionKind::snapshot ||
                        action == ActionKind::reduce;
      CHECK(damaged([&](TraceSpan& s) {
              s.activity = activity;
              s.subject = kind;
            }) == !fits);
    }
  }
}

// ---- Clocks ----

TEST_CASE("a Pong gives the offset of the peer's clock within half the round trip") {
  constexpr std::int64_t kMillisecond = 1'000'000;
  for (const std::int64_t ahead : {std::int64_t{0}, 3'600'000 * kMillisecond, -5 * kMillisecond}) {
    const std::int64_t here =
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    wire::Pong pong;
    // 6 ms to the peer, 2 ms at the peer, and 2 ms back, plus the time that the test itself takes.
    pong.set_ping_sent(static_cast<std::uint64_t>(here - 10 * kMillisecond));
    pong.set_ping_received(static_cast<std::uint64_t>(here - 4 * kMillisecond + ahead));
    pong.set_sent(static_cast<std::uint64_t>(here - 2 * kMillisecond + ahead));
    const std::string bytes = pong.SerializeAsString();
    const ClockSample sample = clockOfPong(std::as_bytes(std::span(bytes.data(), bytes.size())));
    CHECK(sample.roundTripSeconds >= 8e-3);
    const double wrong = 1e-9 * static_cast<double>(sample.ahead - ahead);
    CHECK(wrong <= 2e-3);
    CHECK(std::abs(wrong) <= sample.roundTripSeconds / 2);
  }
  wire::Pong absurd;
  absurd.set_ping_received(std::uint64_t{1} << 63);
  absurd.set_sent(std::uint64_t{1} << 63);
  const std::string bytes = absurd.SerializeAsString();
  const ClockSample sample = clockOfPong(std::as_bytes(std::span(bytes.data(), bytes.size())));
  CHECK(sample.ahead >= -(std::int64_t{1} << 62));
  CHECK(sample.ahead <= std::int64_t{1} << 62);
}

// ---- The file ----

// A server whose clock is ahead by `ahead`, and a link with 3 ms one-way latency.
struct TwoSides {
  explicit TwoSides(std::chrono::nanoseconds ahead) {
    for (std::uint32_t i = 0; i < kMicroBatches; ++i) {
      const int begin = 10 * static_cast<int>(i);
      client.ran(ActionKind::headForward, batchAt(2, i), {}, at(begin + 2), 2e-3);
      pass(client, server, ahead, {Phase::train, 2, i, activationAt(0)}, begin + 2);
      server.ran(ActionKind::bodyForward, batchAt(2, i), at(begin) + ahead, at(begin + 9) + ahead,
                 1e-3);
    }
  }
  static void pass(TraceRecorder& from, TraceRecorder& to, std::chrono::nanoseconds ahead,
                   const Key& key, int sentAt) {
    from.moved(TraceActivity::queue, key, at(sentAt - 1), at(sentAt));
    from.moved(TraceActivity::send, key, at(sentAt), at(sentAt + 2));
    to.moved(TraceActivity::receive, key, at(sentAt + 3) + ahead, at(sentAt + 5) + ahead);
  }
  nlohmann::json joined(const ClockSample& clock) const {
    return nlohmann::json::parse(
        joinTraces({{Place{}, client.trace(), server.trace(), clock}}).text({{"run", "a \"b\""}}));
  }

  TraceRecorder client{kWindow}, server{kWindow};
};

TEST_CASE("both sides are drawn on the client's clock, for any offset of the server's clock") {
  const auto error = microseconds(100);
  for (const std::chrono::nanoseconds ahead :
       {std::chrono::nanoseconds(0), std::chrono::nanoseconds(minutes(7)),
        -std::chrono::nanoseconds(minutes(50))}) {
    const TwoSides sides(ahead);
    for (const auto wrong : {-error, microseconds(0), error}) {
      CAPTURE(ahead.count(), wrong.count());
      const nlohmann::json trace =
          sides.joined({2e-4, std::chrono::nanoseconds(ahead + wrong).count()});
      CHECK(trace.at("otherData").at("run") == "a \"b\"");
      checkTracksDoNotOverlap(trace);
      const std::vector<TraceArrow> arrows = arrowsOf(trace);
      REQUIRE(arrows.size() == kMicroBatches);
      for (const TraceArrow& arrow : arrows) {
        CHECK(arrow.fromProcess == "client");
        CHECK(arrow.toProcess == "server");
        CHECK(arrow.name == "activation/0");
        CHECK(arrow.end - arrow.begin == Approx(3000 - static_cast<double>(wrong.count())));
      }
      double first = 1e9;
      for (const nlohmann::json& event : trace.at("traceEvents")) {
        if (event.contains("ts")) first = std::min(first, event.at("ts").get<double>());
      }
      CHECK(first == 0);
    }
  }
}

TEST_CASE("slices have names, categories and arguments") {
  const nlohmann::json trace = TwoSides(minutes(1)).joined({0, 60'000'000'000});
  std::map<std::string, int> names;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" || event.at("ph") == "b") {
      ++names[event.at("cat").get<std::string>() + ": " + event.at("name").get<std::string>()];
      CHECK(event.at("args").at("step") == 2);
    }
  }
  CHECK(names == std::map<std::string, int>{{"compute: HeadForward 0", 1},
                                            {"compute: HeadForward 1", 1},
                                            {"compute: BodyForward 0", 1},
                                            {"compute: BodyForward 1", 1},
                                            {"wait: wait for activation/0 0", 1},
                                            {"wait: wait for activation/0 1", 1},
                                            {"queue: queue activation/0 0", 1},
                                            {"queue: queue activation/0 1", 1},
                                            {"send: send activation/0 0", 1},
                                            {"send: send activation/0 1", 1},
                                            {"receive: receive activation/0 0", 1},
                                            {"receive: receive activation/0 1", 1}});
}

TEST_CASE("with two servers, a tensor between them has arrows on both links") {
  TraceRecorder client0(kWindow), client1(kWindow), server0(kWindow), server1(kWindow);
  const std::chrono::nanoseconds ahead0 = minutes(3), ahead1 = -minutes(5);
  const Key key{Phase::train, 2, 0, activationAt(1)};
  client0.ran(ActionKind::headForward, batchAt(2, 0), {}, at(2), 2e-3);
  // Server 0 sends to the client, which sends to server 1.
  server0.moved(TraceActivity::send, key, at(10) + ahead0, at(11) + ahead0);
  client0.moved(TraceActivity::receive, key, at(13), at(14));
  client1.moved(TraceActivity::send, key, at(13), at(15));
  server1.moved(TraceActivity::receive, key, at(16) + ahead1, at(18) + ahead1);
  server1.ran(ActionKind::bodyForward, batchAt(2, 0), at(10) + ahead1, at(20) + ahead1, 2e-3);
  const std::vector<TracedLink> links = {
      {{0, 1}, client0.trace(), server0.trace(), {0, ahead0.count()}},
      {{1, 2}, client1.trace(), server1.trace(), {0, ahead1.count()}}};
  const nlohmann::json trace = nlohmann::json::parse(joinTraces(links).text({}));
  checkTracksDoNotOverlap(trace);  // although the client sends and receives at the same time
  std::vector<std::string> processes;
  for (const auto& [pid, name] : processesOf(trace)) processes.push_back(name);
  CHECK(processes == std::vector<std::string>{"client", "server 1", "server 2"});
  const std::vector<TraceArrow> arrows = arrowsOf(trace);
  REQUIRE(arrows.size() == 2);
  CHECK(arrows[0].fromProcess == "server 1");
  CHECK(arrows[0].toProcess == "client");
  CHECK(arrows[0].begin == Approx(10e3));
  CHECK(arrows[0].end == Approx(13e3));
  CHECK(arrows[1].fromProcess == "client");
  CHECK(arrows[1].toProcess == "server 2");
  CHECK(arrows[1].end == Approx(16e3));
  CHECK_THAT(trace.dump(), Contains("wait for activation/1 0"));
}

TEST_CASE("false times from a server only distort the trace") {
  const TwoSides honest(minutes(1));
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  Trace lies;
  lies.spans = {serverSpan(), serverSpan()};
  lies.spans[0].begin = 0;
  lies.spans[1].begin = lies.spans[1].end = kMax - 1;
  for (const std::int64_t ahead : {kMax, -kMax, std::int64_t{0}}) {
    const auto text = joinTraces({{Place{}, honest.client.trace(), lies, {0, ahead}}}).text({});
    CHECK_FALSE(nlohmann::json::parse(text).at("traceEvents").empty());
  }
  CHECK_FALSE(nlohmann::json::parse(joinTraces({TracedLink{}}).text({})).at("traceEvents").empty());
}

}  // namespace
}  // namespace cleave::test
