// Counts and logs the connections and sessions that the server refuses or ends because of the peer.
// Logs at most one line per second per reason. io thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/core/clock.h"
#include "common/core/error.h"

namespace cleave {

class Refusals {
 public:
  // `who`: session and peer. The reason is the code of `error`, which a peer must not be able to
  // choose.
  // `identity`: empty if it is not known.
  void note(const std::string& who, const Error& error, const std::string& identity = "") {
    note(who, error, now(), identity);
  }
  void note(const std::string& who, const Error& error, SteadyTime time,
            const std::string& identity = "");
  // Counts a session that ended with `error`, if the peer violated the protocol. The session has
  // logged the error itself.
  void count(const std::exception& error);
  // Logs how many lines were suppressed, once their second has passed. Call it about once per
  // second.
  void flush(SteadyTime time);
  // Counts by reason, such as "3 bad-frame, 2 flood"; empty if there were none.
  std::string summary() const;

  std::uint64_t count(const std::string& reason) const;
  std::map<std::string, std::uint64_t> counts() const;  // by reason
  std::uint64_t logged() const { return logged_; }      // lines

 private:
  struct Reason {
    std::uint64_t count = 0;
    std::uint64_t unsaid = 0;  // suppressed since the last line
    SteadyTime lastLine;
  };
  void sayUnsaid(const std::string& code, Reason& reason, SteadyTime time);

  std::map<std::string, Reason> reasons_;
  std::uint64_t logged_ = 0;
};

}  // namespace cleave
