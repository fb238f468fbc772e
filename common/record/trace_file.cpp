#include "common/record/trace_file.h"

#include "common/engine/stage_engine.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace cleave {
namespace {

using Json = TraceFile::Json;

// Trace events use microseconds.
double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

constexpr const char* kCategories[kTraceActivities] = {"compute", "wait",    "encode", "queue",
                                                       "send",    "receive", "decode"};

std::string numbered(std::string_view name, std::uint32_t i) {
  return std::string(name) + " " + std::to_string(i);
}

// The flow that the action waits for, in a run with one body.
std::optional<Flow> inputOf(ActionKind kind) {
  for (const StageRows& stage : {clientRows({Place{}}), bodyRows({})}) {
    for (const StageRow& row : stage.rows) {
      if (row.kind == kind && !row.inputs.empty()) return row.inputs.front();
    }
  }
  return std::nullopt;
}

std::string reasonOfWait(const TraceSpan& span) {
  const ActionKind kind = span.action();
  if (const auto input = inputOf(kind)) return numbered(flowName(*input), span.i);
  if (kind == ActionKind::headForward) return "fewer in flight";
  if (kind == ActionKind::decide) return "BodyDone";
  if (kind == ActionKind::update) return "Step";
  return std::string(actionName(kind));
}

std::string nameOf(const TraceSpan& span) {
  const std::string category = kCategories[indexOf(span.activity)];
  switch (span.activity) {
    case TraceActivity::compute:
      return indexOf(span.action()) < kScheduledKinds ? numbered(actionName(span.action()), span.i)
                                                      : std::string(actionName(span.action()));
    case TraceActivity::wait:
      return "wait for " + reasonOfWait(span);
    default:
      return category + " " + numbered(flowName(span.flow()), span.i);
  }
}

// A peer can choose any times, so differences wrap around instead of overflowing.
std::int64_t minus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

std::optional<std::int64_t> earliest(const Trace& trace) {
  const auto first =
      std::min_element(trace.spans.begin(), trace.spans.end(),
                       [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return first == trace.spans.end() ? std::nullopt : std::optional(first->begin);
}

using TensorKey = std::tuple<std::uint64_t, std::uint32_t, Flow>;
TensorKey keyOf(const TraceSpan& span) { return {span.step, span.i, span.flow()}; }

// The tracks of one side, which the viewer displays as a process.
class Side {
 public:
  Side(TraceFile& file, const std::string& name)
      : file_(file),
        process_(file.addProcess(name)),
        compute_(file.addTrack(process_, "compute")),
        codec_(file.addTrack(process_, "codec")),
        send_(file.addTrack(process_, "send")),
        receive_(file.addTrack(process_, "receive")) {}

  // `origin`: the time on this side's clock that is displayed as 0.
  void draw(const Trace& trace, std::int64_t origin) {
    for (const TraceSpan& span : trace.spans) {
      const std::int64_t begin = minus(span.begin, origin);
      const std::int64_t end = minus(span.end, origin);
      const char* const category = kCategories[indexOf(span.activity)];
      const Json arguments = {{"step", span.step}, {"micro_batch", span.i}};
      if (span.activity == TraceActivity::queue) {
        file_.overlapping(process_, category, nameOf(span), begin, end, arguments);
      } else {
        file_.slice(trackOf(span.activity), category, nameOf(span), begin, end, arguments);
      }
      if (span.activity == TraceActivity::send) sent.emplace(keyOf(span), begin);
      if (span.activity == TraceActivity::receive) received.emplace(keyOf(span), begin);
    }
  }
  TraceTrack sendTrack() const { return send_; }
  TraceTrack receiveTrack() const { return receive_; }

  // Start of each tensor's first sending and receiving slice.
  std::map<TensorKey, std::int64_t> sent, received;

 private:
  TraceTrack trackOf(TraceActivity activity) const {
    switch (activity) {
      case TraceActivity::encode:
      case TraceActivity::decode:
        return codec_;
      case TraceActivity::send:
        return send_;
      case TraceActivity::receive:
        return receive_;
      default:
        return compute_;
    }
  }

  TraceFile& file_;
  const int process_;
  const TraceTrack compute_, codec_, send_, receive_;
};

void drawArrows(TraceFile& file, const Side& from, const Side& to) {
  for (const auto& [key, begin] : from.sent) {
    const auto arrival = to.received.find(key);
    if (arrival == to.received.end()) continue;
    file.arrow("wire", std::string(flowName(std::get<Flow>(key))), from.sendTrack(), begin,
               to.receiveTrack(), arrival->second);
  }
}

}  // namespace

void TraceFile::add(const Json& event) {
  events_ += events_.empty() ? "\n" : ",\n";
  events_ += event.dump();
}

int TraceFile::addProcess(const std::string& name) {
  const int process = ++processes_;
  add({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
  add({{"ph", "M"},
       {"name", "process_sort_index"},
       {"pid", process},
       {"args", {{"sort_index", process}}}});
  return process;
}

TraceTrack TraceFile::addTrack(int process, const std::string& name) {
  const TraceTrack track{process, ++threads_};
  add({{"ph", "M"},
       {"name", "thread_name"},
       {"pid", track.process},
       {"tid", track.thread},
       {"args", {{"name", name}}}});
  add({{"ph", "M"},
       {"name", "thread_sort_index"},
       {"pid", track.process},
       {"tid", track.thread},
       {"args", {{"sort_index", track.thread}}}});
  return track;
}

void TraceFile::slice(TraceTrack track, const char* category, const std::string& name,
                      std::int64_t begin, std::int64_t end, const Json& arguments) {
  // A nanosecond shorter, since rounding could otherwise make it overlap a slice that begins at its
  // end.
  const std::int64_t duration = std::max<std::int64_t>(0, end - begin - 1);
  Json event = {{"ph", "X"},
                {"name", name},
                {"cat", category},
                {"pid", track.process},
                {"tid", track.thread},
                {"ts", microseconds(begin)},
                {"dur", microseconds(duration)}};
  if (!arguments.is_null()) event["args"] = arguments;
  add(event);
}

void TraceFile::overlapping(int process, const char* category, const std::string& name,
                            std::int64_t begin, std::int64_t end, const Json& arguments) {
  Json event = {{"ph", "b"},      {"name", name}, {"cat", category},          {"id", ++ids_},
                {"pid", process}, {"tid", 0},     {"ts", microseconds(begin)}};
  if (!arguments.is_null()) event["args"] = arguments;
  add(event);
  event["ph"] = "e";
  event["ts"] = microseconds(end);
  event.erase("args");
  add(event);
}

void TraceFile::arrow(const char* category, const std::string& name, TraceTrack from,
                      std::int64_t begin, TraceTrack to, std::int64_t end) {
  Json event = {
      {"ph", "s"},           {"name", name},       {"cat", category},          {"id", ++ids_},
      {"pid", from.process}, {"tid", from.thread}, {"ts", microseconds(begin)}};
  add(event);
  event["ph"] = "f";
  event["bp"] = "e";  // binds to the enclosing slice, not to the next one
  event["pid"] = to.process;
  event["tid"] = to.thread;
  event["ts"] = microseconds(end);
  add(event);
}

std::string TraceFile::text(const Json& about) const {
  return R"({"displayTimeUnit":"ms","otherData":)" + about.dump() + R"(,"traceEvents":[)" +
         events_ + "\n]}\n";
}

TraceFile joinTraces(const Trace& client, const Trace& server, const ClockSample& serverClock) {
  TraceFile file;
  Side clientSide(file, "client");
  Side serverSide(file, "server");
  // `origin` is the start of the earliest span of either side, on the server's clock.
  const std::int64_t ahead = serverClock.ahead;
  const std::int64_t here = minus(earliest(client).value_or(0), minus(0, ahead));
  const std::int64_t origin = std::min(here, earliest(server).value_or(here));
  clientSide.draw(client, minus(origin, ahead));
  serverSide.draw(server, origin);
  drawArrows(file, clientSide, serverSide);
  drawArrows(file, serverSide, clientSide);
  return file;
}

}  // namespace cleave
