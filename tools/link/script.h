// The events of an emulated link and their times. An event is one line:
//
//   event  = TIME " " what
//   what   = "blackhole" [way] "for" TIME     nothing crosses during that time
//          | "half-open" way                  silently stops that direction of all open connections
//          | "reset"                          resets all open connections
//          | "rate" [way] RATE
//          | "latency" [way] TIME
//   way    = "up" | "down" | "both"           both if omitted
//
// such as "5s blackhole for 2s" or "10s rate down 50Mbit/s".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/core/units.h"
#include "tools/link/shaper.h"

namespace cleave::link {

struct Event {
  enum class Kind { linkDown, linkUp, halfOpen, reset, rate, latency };

  Time at{0};
  Kind kind = Kind::reset;
  bool up = true;  // the directions it applies to
  bool down = true;
  double rate = 0;
  Time latency{0};
  std::string text;  // the line, for the log; empty for the end of a blackhole
};

// Returns the event; for a blackhole, two events: its start and its end. Throws UsageError.
std::vector<Event> parseEvent(const Placed& line);

// Events in the order of their times.
class Script {
 public:
  explicit Script(std::vector<Event> events);  // in any order; stable for equal times
  // Time of the next event; empty if none is left.
  std::optional<Time> next() const;
  // The next event, if it is due by `now`.
  std::optional<Event> take(Time now);
  const std::vector<Event>& events() const { return events_; }

 private:
  std::vector<Event> events_;
  std::size_t taken_ = 0;
};

}  // namespace cleave::link
