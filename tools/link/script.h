// What happens to an emulated link, and when. An event is one line:
//
//   event  = TIME " " what
//   what   = "blackhole" [way] "for" TIME     nothing crosses for so long
//          | "half-open" way                  that direction of all open connections dies silently
//          | "reset"                          all open connections are reset
//          | "rate" [way] RATE
//          | "latency" [way] TIME
//   way    = "up" | "down" | "both"           both, where it is left out
//
// such as "5s blackhole for 2s" or "10s rate down 50Mbit/s".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/link/shaper.h"
#include "tools/link/units.h"

namespace cleave::link {

struct Event {
  enum class Kind { linkDown, linkUp, halfOpen, reset, rate, latency };

  Time at{0};
  Kind kind = Kind::reset;
  bool up = true;  // which directions it is for
  bool down = true;
  double rate = 0;
  Time latency{0};
  std::string text;  // as it was written, for the log; empty for what ends a blackhole
};

// The event or, for a blackhole, its begin and end. Throws UsageError.
std::vector<Event> parseEvent(const Placed& line);

// The events in the order in which they happen.
class Script {
 public:
  explicit Script(std::vector<Event> events);  // in any order; those of one time stay in theirs
  // When the next one happens; none: all have.
  std::optional<Time> next() const;
  // The next one that has happened by `now`.
  std::optional<Event> take(Time now);
  const std::vector<Event>& events() const { return events_; }

 private:
  std::vector<Event> events_;
  std::size_t taken_ = 0;
};

}  // namespace cleave::link
