// Simulated time, which advances from one event to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace cleave {

class VirtualClock {
 public:
  double now() const { return now_; }  // seconds
  // Requires time >= now(). Events at the same time run in the order in which they were added.
  void at(double time, std::function<void()> run) {
    events_.push({time, sequence_++, std::move(run)});
  }
  void after(double seconds, std::function<void()> run) { at(now_ + seconds, std::move(run)); }
  // Advances to the next event and runs it. Returns false if there is none.
  bool runNext() {
    if (events_.empty()) return false;
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.run();
    return true;
  }

 private:
  struct Event {
    double time = 0;
    std::uint64_t sequence = 0;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  std::priority_queue<Event> events_;
  std::uint64_t sequence_ = 0;
  double now_ = 0;
};

}  // namespace cleave
