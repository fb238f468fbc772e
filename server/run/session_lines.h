// Keeps many short sessions from filling the server's log: allows a few lines per second per
// identity, and then logs how many were left out. A run's own log.txt has all of its lines. io
// thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/core/clock.h"

namespace cleave {

class SessionLines {
 public:
  // Maximum lines per second per identity. A session logs three lines.
  static constexpr std::uint64_t kPerSecond = 9;

  // Whether a line about a session of `identity` may be logged now.
  bool take(const std::string& identity, SteadyTime time);
  // Logs how many lines were left out. Call it about once per second.
  void flush(SteadyTime time);

  std::uint64_t leftOut() const { return leftOut_; }  // total lines left out

 private:
  struct Second {
    SteadyTime start;
    std::uint64_t lines = 0;  // number of lines, both logged and left out
    void logLeftOut(const std::string& identity) const;
  };
  std::map<std::string, Second> seconds_;  // by identity; at most one second old after flush()
  std::uint64_t leftOut_ = 0;
};

}  // namespace cleave
