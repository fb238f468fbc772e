// What a daemon did when, during a few steps of a run: spans in bounded memory, and their bytes on
// the wire (proto/PROTOCOL.md, "Trace").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/core/clock.h"
#include "common/core/key.h"
#include "common/core/step.h"
#include "common/pipeline/schedule.h"

namespace cleave {

inline constexpr std::string_view kTraceFeature = "trace";  // in Hello and HelloOk

// The numbers travel.
enum class TraceActivity : std::uint8_t {
  compute,
  wait,     // the device thread has nothing to do
  encode,   //
  queue,    // encoded, and not yet the next to be written
  send,     // handing segments to the kernel
  receive,  // reading segments
  decode,
};
inline constexpr std::size_t kTraceActivities = 7;
constexpr std::size_t indexOf(TraceActivity activity) { return static_cast<std::size_t>(activity); }

// Training steps, counted from 1.
struct TraceWindow {
  std::uint64_t first = 0;
  std::uint64_t steps = 0;  // 0: no trace
  std::uint64_t last() const { return first + steps - 1; }
  bool contains(std::uint64_t step) const { return step >= first && step - first < steps; }
};
inline constexpr std::uint64_t kMaxTraceSteps = 10000;

// One activity for one micro-batch. It travels as it is.
struct TraceSpan {
  TraceActivity activity = TraceActivity::compute;
  // compute: the ActionKind; wait: that of the action it ended with; others: the Flow.
  std::uint8_t subject = 0;
  std::uint16_t reserved = 0;  // 0
  std::uint32_t i = 0;         // micro-batch; 0 for report, decide and update
  std::uint64_t step = 0;
  std::int64_t begin = 0, end = 0;  // nanoseconds of the recording side's steady clock

  ActionKind action() const { return static_cast<ActionKind>(subject); }
  Flow flow() const { return static_cast<Flow>(subject); }
};
static_assert(sizeof(TraceSpan) == 32);

inline constexpr std::size_t kMaxTraceSpans = std::size_t{1} << 16;
// What `dropped` and the spans take on the wire.
inline constexpr std::size_t kMaxTraceBytes =
    sizeof(std::uint64_t) + kMaxTraceSpans * sizeof(TraceSpan);

// One side's spans. Those of compute and wait do not overlap, nor do those of encode and decode, of
// send, of receive; those of queue may.
struct Trace {
  std::vector<TraceSpan> spans;
  std::uint64_t dropped = 0;  // spans beyond kMaxTraceSpans
};

// Takes the spans of the window's training steps, at most kMaxTraceSpans. Any thread.
class TraceRecorder {
 public:
  explicit TraceRecorder(TraceWindow window) : window_(window) {}

  const TraceWindow& window() const { return window_; }
  bool wants(Phase phase, std::uint64_t step) const {
    return phase == Phase::train && window_.contains(step);
  }
  bool wants(const Key& key) const {
    return indexOf(key.flow) < kTensorFlows && wants(key.phase, key.step);
  }
  // An action that ended at `end` and took `seconds` of the device. `idleSince`: the device thread
  // had nothing to do from then on, until this action could begin.
  void ran(ActionKind kind, const MicroBatch& at, std::optional<SteadyTime> idleSince,
           SteadyTime end, double seconds);
  // Segments of one tensor that follow each other become one span.
  void moved(TraceActivity activity, const Key& key, SteadyTime begin, SteadyTime end);
  Trace trace() const;

 private:
  void add(const TraceSpan& span);

  const TraceWindow window_;
  mutable std::mutex mutex_;
  Trace trace_;
  std::int64_t lastRan_ = 0;                                         // the last one's end
  std::array<std::optional<std::size_t>, kTraceActivities> lastOf_;  // in trace_.spans
};

std::vector<std::byte> toBytes(const Trace& trace);
// What a server sent. Throws ProtocolError "bad-trace" for what no server has done: an action or a
// flow that it has not, a micro-batch or a step that was not asked for, an end before its begin.
// Times are the server's to choose.
Trace traceFromServer(std::span<const std::byte> bytes, const TraceWindow& window,
                      std::uint32_t microBatches);

}  // namespace cleave
