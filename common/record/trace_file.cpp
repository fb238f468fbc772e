#include "common/record/trace_file.h"

#include "common/engine/stage_engine.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

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

// The flow that the action of this stage waits for.
std::optional<Flow> inputOf(ActionKind kind, const StageRows& stage) {
  for (const StageRow& row : stage.rows) {
    if (row.kind == kind && !row.inputs.empty()) return row.inputs.front();
  }
  return std::nullopt;
}

std::string reasonOfWait(const TraceSpan& span, const StageRows& stage) {
  const ActionKind kind = span.action();
  if (const auto input = inputOf(kind, stage)) return numbered(flowName(*input), span.i);
  if (kind == ActionKind::headForward) return "fewer in flight";
  if (kind == ActionKind::decide) return "BodyDone";
  if (kind == ActionKind::update) return "Step";
  return std::string(actionName(kind));
}

std::string nameOf(const TraceSpan& span, const StageRows& stage) {
  const std::string category = kCategories[indexOf(span.activity)];
  switch (span.activity) {
    case TraceActivity::compute:
      return indexOf(span.action()) < kScheduledKinds ? numbered(actionName(span.action()), span.i)
                                                      : std::string(actionName(span.action()));
    case TraceActivity::wait:
      return "wait for " + reasonOfWait(span, stage);
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

// The tracks of one end of a link.
struct LinkTracks {
  TraceTrack send, receive;
  // Start of each tensor's first sending and receiving slice.
  std::map<TensorKey, std::int64_t> sent = {}, received = {};
};

// The tracks of one side, which the viewer displays as a process.
class Side {
 public:
  // `links`: the names of its links; "" for a single one.
  Side(TraceFile& file, const std::string& name, StageRows stage,
       const std::vector<std::string>& links)
      : file_(file),
        stage_(std::move(stage)),
        process_(file.addProcess(name)),
        compute_(file.addTrack(process_, "compute")),
        codec_(file.addTrack(process_, "codec")) {
    for (const std::string& link : links) {
      // The tracks appear in the order in which they are added.
      const TraceTrack send = file.addTrack(process_, "send" + link);
      links_.push_back({send, file.addTrack(process_, "receive" + link)});
    }
  }

  // `origin`: the time on this side's clock that is displayed as 0.
  void draw(const Trace& trace, std::size_t link, std::int64_t origin) {
    LinkTracks& tracks = links_[link];
    for (const TraceSpan& span : trace.spans) {
      const std::int64_t begin = minus(span.begin, origin);
      const std::int64_t end = minus(span.end, origin);
      const char* const category = kCategories[indexOf(span.activity)];
      const std::string name = nameOf(span, stage_);
      const Json arguments = {{"step", span.step}, {"micro_batch", span.i}};
      if (span.activity == TraceActivity::queue) {
        file_.overlapping(process_, category, name, begin, end, arguments);
      } else {
        file_.slice(trackOf(span.activity, tracks), category, name, begin, end, arguments);
      }
      if (span.activity == TraceActivity::send) tracks.sent.emplace(keyOf(span), begin);
      if (span.activity == TraceActivity::receive) tracks.received.emplace(keyOf(span), begin);
    }
  }
  const LinkTracks& link(std::size_t number) const { return links_[number]; }

 private:
  TraceTrack trackOf(TraceActivity activity, const LinkTracks& tracks) const {
    switch (activity) {
      case TraceActivity::encode:
      case TraceActivity::decode:
        return codec_;
      case TraceActivity::send:
        return tracks.send;
      case TraceActivity::receive:
        return tracks.receive;
      default:
        return compute_;
    }
  }

  TraceFile& file_;
  const StageRows stage_;
  const int process_;
  const TraceTrack compute_, codec_;
  std::vector<LinkTracks> links_;
};

void drawArrows(TraceFile& file, const LinkTracks& from, const LinkTracks& to) {
  for (const auto& [key, begin] : from.sent) {
    const auto arrival = to.received.find(key);
    if (arrival == to.received.end()) continue;
    file.arrow("wire", std::string(flowName(std::get<Flow>(key))), from.send, begin, to.receive,
               arrival->second);
  }
}

// The start of the earliest span of any side, on the client's clock.
std::int64_t earliestOf(const std::vector<TracedLink>& links) {
  std::optional<std::int64_t> first;
  for (const TracedLink& link : links) {
    const auto consider = [&](std::optional<std::int64_t> begin, std::int64_t ahead) {
      if (begin && (!first || minus(*begin, ahead) < *first)) first = minus(*begin, ahead);
    };
    consider(earliest(link.client), 0);
    consider(earliest(link.server), link.serverClock.ahead);
  }
  return first.value_or(0);
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

TraceFile joinTraces(const std::vector<TracedLink>& links) {
  TraceFile file;
  std::vector<Place> places;
  std::vector<std::string> numbers, names;
  for (const TracedLink& link : links) {
    places.push_back(link.place);
    const std::string number = std::to_string(places.size());
    numbers.push_back(links.size() == 1 ? "" : " " + number);
    names.push_back(links.size() == 1 ? "" : ", server " + number);
  }
  const std::int64_t origin = earliestOf(links);
  Side client(file, "client", clientRows(places), names);
  for (std::size_t l = 0; l < links.size(); ++l) {
    Side server(file, "server" + numbers[l], bodyRows(places[l], 1), {""});
    client.draw(links[l].client, l, origin);
    server.draw(links[l].server, 0, minus(origin, minus(0, links[l].serverClock.ahead)));
    drawArrows(file, client.link(l), server.link(0));
    drawArrows(file, server.link(0), client.link(l));
  }
  return file;
}

}  // namespace cleave
