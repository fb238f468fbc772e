#include "common/engine/trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace cleave {
namespace {

static_assert(std::endian::native == std::endian::little);

// Clocks do not reach this time, and the sum of two such times does not overflow.
constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;

std::int64_t nanoseconds(SteadyTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

bool isOfServer(ActionKind kind) {
  return kind == ActionKind::bodyForward || kind == ActionKind::bodyBackward ||
         kind == ActionKind::bodyWeights || kind == ActionKind::reduce ||
         kind == ActionKind::report || kind == ActionKind::update || kind == ActionKind::snapshot;
}

bool isPossible(const TraceSpan& span, const TraceWindow& window, std::uint32_t microBatches,
                const Place& body) {
  if (indexOf(span.activity) >= kTraceActivities) return false;
  if (!window.contains(span.step) || span.i >= microBatches) return false;
  if (span.begin < 0 || span.begin > span.end || span.end >= kMaxTime) return false;
  if (span.activity == TraceActivity::compute || span.activity == TraceActivity::wait) {
    return span.subject < kActionKinds && span.tensor == 0 && isOfServer(span.action());
  }
  const auto flow = flowFromNumber(span.flowNumber());
  if (!flow || !body.contains(*flow)) return false;
  const bool isReceived =
      span.activity == TraceActivity::receive || span.activity == TraceActivity::decode;
  return body.isUp(*flow) == isReceived;
}

}  // namespace

void TraceRecorder::add(const TraceSpan& span) {
  if (trace_.spans.size() >= kMaxTraceSpans) {
    ++trace_.dropped;
    return;
  }
  lastOf_[indexOf(span.activity)] = trace_.spans.size();
  trace_.spans.push_back(span);
}

void TraceRecorder::ran(ActionKind kind, const MicroBatch& at, std::optional<SteadyTime> idleSince,
                        SteadyTime end, double seconds) {
  if (kind >= ActionKind::exportBlob && kind != ActionKind::reduce) return;
  const std::lock_guard lock(mutex_);
  TraceSpan span{TraceActivity::compute, static_cast<std::uint8_t>(kind), 0, at.i, at.step, 0, 0};
  span.end = nanoseconds(end);
  // According to a GPU's measured seconds, an action may begin before the host saw the end of the
  // previous one.
  span.begin = std::clamp(span.end - nanoseconds(seconds), std::min(lastRan_, span.end), span.end);
  // The wait before a batch begins is not recorded.
  const bool begins = kind == ActionKind::headForward && at.i == 0;
  const bool wanted = wants(at.phase, at.step);
  if (wanted && idleSince && !begins) {
    TraceSpan wait = span;
    wait.activity = TraceActivity::wait;
    wait.begin = std::max(nanoseconds(*idleSince), lastRan_);
    wait.end = span.begin;
    if (wait.begin < wait.end) add(wait);
  }
  lastRan_ = span.end;
  if (wanted) add(span);
}

void TraceRecorder::moved(TraceActivity activity, const Key& key, SteadyTime begin,
                          SteadyTime end) {
  if (!wants(key)) return;
  const std::lock_guard lock(mutex_);
  if (const auto last = lastOf_[indexOf(activity)]) {
    TraceSpan& before = trace_.spans[*last];
    if (before.flow() == key.flow && before.i == key.i && before.step == key.step) {
      before.end = nanoseconds(end);
      return;
    }
  }
  const std::uint64_t number = flowNumber(key.flow);
  add({activity, static_cast<std::uint8_t>(number), static_cast<std::uint16_t>(number >> 16), key.i,
       key.step, nanoseconds(begin), nanoseconds(end)});
}

Trace TraceRecorder::trace() const {
  const std::lock_guard lock(mutex_);
  return trace_;
}

std::vector<std::byte> toBytes(const Trace& trace) {
  std::vector<std::byte> bytes(sizeof trace.dropped + trace.spans.size() * sizeof(TraceSpan));
  std::memcpy(bytes.data(), &trace.dropped, sizeof trace.dropped);
  if (!trace.spans.empty()) {
    std::memcpy(&bytes[sizeof trace.dropped], trace.spans.data(),
                trace.spans.size() * sizeof(TraceSpan));
  }
  return bytes;
}

Trace traceFromServer(std::span<const std::byte> bytes, const TraceWindow& window,
                      std::uint32_t microBatches, const Place& body) {
  Trace trace;
  if (bytes.size() < sizeof trace.dropped || bytes.size() > kMaxTraceBytes ||
      (bytes.size() - sizeof trace.dropped) % sizeof(TraceSpan) != 0) {
    throw ProtocolError("bad-trace", "trace/body has " + std::to_string(bytes.size()) +
                                         " bytes, which is not a valid trace size");
  }
  std::memcpy(&trace.dropped, bytes.data(), sizeof trace.dropped);
  const auto records = bytes.subspan(sizeof trace.dropped);
  trace.spans.resize(records.size() / sizeof(TraceSpan));
  if (!records.empty()) std::memcpy(trace.spans.data(), records.data(), records.size());
  for (std::size_t n = 0; n < trace.spans.size(); ++n) {
    if (isPossible(trace.spans[n], window, microBatches, body)) continue;
    throw ProtocolError(
        "bad-trace",
        "span " + std::to_string(n) +
            " of trace/body is not a span that a server records in the requested steps");
  }
  return trace;
}

}  // namespace cleave
