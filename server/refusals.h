// Everything that the server turns away or ends for a peer's fault: counted by reason, and logged,
// a line a second and reason at most. io thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/core/clock.h"
#include "common/core/error.h"

namespace cleave {

class Refusals {
 public:
  // `who`: session and peer. The code of `error` is the reason: pass none that a peer has chosen.
  void note(const std::string& who, const Error& error) { note(who, error, now()); }
  void note(const std::string& who, const Error& error, SteadyTime time);
  // A session has ended with `error`, and said so: counts it where the peer broke the protocol.
  void count(const std::exception& error);
  // Says how many lines were left out, where the second has passed. To be called now and then.
  void flush(SteadyTime time);
  // By reason: "3 bad-frame, 2 flood"; empty where there were none.
  std::string summary() const;

  std::uint64_t count(const std::string& reason) const;
  std::map<std::string, std::uint64_t> counts() const;  // by reason
  std::uint64_t logged() const { return logged_; }      // lines

 private:
  struct Reason {
    std::uint64_t count = 0;
    std::uint64_t unsaid = 0;  // since the last line
    SteadyTime lastLine;
  };
  void sayUnsaid(const std::string& code, Reason& reason, SteadyTime time);

  std::map<std::string, Reason> reasons_;
  std::uint64_t logged_ = 0;
};

}  // namespace cleave
