// Writes timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing display
// (docs/trace.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/engine/trace.h"
#include "common/net/connection_messages.h"

namespace cleave {

// A row of a timeline: a thread of a process.
struct TraceTrack {
  int process = 0, thread = 0;
};

// Collects events, in any order. Times are in nanoseconds from any origin.
class TraceFile {
 public:
  using Json = nlohmann::ordered_json;

  // Processes, and the tracks of a process, are displayed in the order in which they were added.
  int addProcess(const std::string& name);
  TraceTrack addTrack(int process, const std::string& name);

  // Slices of one track must not overlap.
  void slice(TraceTrack track, const char* category, const std::string& name, std::int64_t begin,
             std::int64_t end, const Json& arguments = nullptr);
  // A slice that may overlap others of the same process and name; the viewer displays them
  // separately.
  void overlapping(int process, const char* category, const std::string& name, std::int64_t begin,
                   std::int64_t end, const Json& arguments = nullptr);
  // An arrow from the slice that begins at `begin` on one track to the slice that begins at `end`
  // on another.
  void arrow(const char* category, const std::string& name, TraceTrack from, std::int64_t begin,
             TraceTrack to, std::int64_t end);

  // The file's text. `about`: information for the user who opens the file.
  std::string text(const Json& about) const;

 private:
  void add(const Json& event);

  std::string events_;
  int processes_ = 0, threads_ = 0;
  std::uint64_t ids_ = 0;
};

// The traces at both ends of the link to one server. The spans of the client's actions may be in
// any of its traces.
struct TracedLink {
  Place place;  // of the server's body
  Trace client, server;
  ClockSample serverClock;
};
// Combines the spans of all sides on the client's clock. `links`: at least one, in the order of the
// bodies. An arrow connects the first slice of a tensor's sending with the first slice of its
// receiving.
TraceFile joinTraces(const std::vector<TracedLink>& links);

}  // namespace cleave
