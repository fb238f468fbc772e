// Records the activities of one side during a few steps of a run, as spans in bounded memory, and
// converts them to and from their wire format (proto/PROTOCOL.md, "Trace").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/core/clock.h"
#include "common/engine/schedule.h"
#include "common/topology/key.h"
#include "common/topology/step.h"

namespace cleave {

// The numeric values are part of the wire format.
enum class TraceActivity : std::uint8_t {
  compute,
  wait,     // the device thread is idle
  encode,   //
  queue,    // encoded, and waiting for its turn to be sent
  send,     // passing segments to the kernel
  receive,  // reading segments
  decode,
};
inline constexpr std::size_t kTraceActivities = 7;
constexpr std::size_t indexOf(TraceActivity activity) { return static_cast<std::size_t>(activity); }

// Training steps, counted from 1.
struct TraceWindow {
  std::uint64_t first = 0;
  std::uint64_t steps = 0;  // 0: no trace
  bool operator==(const TraceWindow&) const = default;
  std::uint64_t last() const { return first + steps - 1; }
  bool contains(std::uint64_t step) const { return step >= first && step - first < steps; }
};
inline constexpr std::uint64_t kMaxTraceSteps = 10000;

// One activity for one micro-batch. This layout is the wire format.
struct TraceSpan {
  TraceActivity activity = TraceActivity::compute;
  // compute: the ActionKind; wait: the ActionKind of the action that ended the wait; other
  // activities: the flow, as 2 * cut for an activation and 2 * cut + 1 for a gradient.
  std::uint8_t subject = 0;
  std::uint16_t tensor = 0;  // the flow's tensor; 0 for compute and wait
  std::uint32_t i = 0;       // micro-batch; 0 for report, decide and update
  std::uint64_t step = 0;
  std::int64_t begin = 0, end = 0;  // nanoseconds of the recording side's steady clock

  ActionKind action() const { return static_cast<ActionKind>(subject); }
  // Requires a span of a tensor.
  Flow flow() const { return *flowFromNumber(flowNumber()); }
  std::uint64_t flowNumber() const { return std::uint64_t{tensor} << 16 | subject; }
};
static_assert(sizeof(TraceSpan) == 32);

inline constexpr std::size_t kMaxTraceSpans = std::size_t{1} << 16;
// Size on the wire of `dropped` and the spans.
inline constexpr std::size_t kMaxTraceBytes =
    sizeof(std::uint64_t) + kMaxTraceSpans * sizeof(TraceSpan);

// One side's spans. Spans of compute and wait do not overlap each other; nor do spans of encode and
// decode, spans of send, or spans of receive. Spans of queue may overlap.
struct Trace {
  std::vector<TraceSpan> spans;
  std::uint64_t dropped = 0;  // spans beyond kMaxTraceSpans, not recorded
};

// Records the spans of the window's training steps, at most kMaxTraceSpans. Any thread.
class TraceRecorder {
 public:
  explicit TraceRecorder(TraceWindow window) : window_(window) {}

  const TraceWindow& window() const { return window_; }
  bool wants(Phase phase, std::uint64_t step) const {
    return phase == Phase::train && window_.contains(step);
  }
  bool wants(const Key& key) const { return !isBlob(key.flow) && wants(key.phase, key.step); }
  // An action ended at `end` and used the device for `seconds`. `idleSince`: when the device thread
  // became idle before this action; nullopt: it was not idle.
  void ran(ActionKind kind, const MicroBatch& at, std::optional<SteadyTime> idleSince,
           SteadyTime end, double seconds);
  // Consecutive segments of one tensor are merged into one span.
  void moved(TraceActivity activity, const Key& key, SteadyTime begin, SteadyTime end);
  Trace trace() const;

 private:
  void add(const TraceSpan& span);

  const TraceWindow window_;
  mutable std::mutex mutex_;
  Trace trace_;
  std::int64_t lastRan_ = 0;                                         // end of the last action
  std::array<std::optional<std::size_t>, kTraceActivities> lastOf_;  // in trace_.spans
};

std::vector<std::byte> toBytes(const Trace& trace);
// Parses a trace received from a server. Throws ProtocolError "bad-trace" if a server cannot have
// recorded it: if it contains an action or a flow that servers do not have, a micro-batch or a step
// that was not requested, or a span that ends before it begins. Times are not checked against any
// clock.
Trace traceFromServer(std::span<const std::byte> bytes, const TraceWindow& window,
                      std::uint32_t microBatches, const Place& body);

}  // namespace cleave
