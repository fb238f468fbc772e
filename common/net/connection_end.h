// The end of a connection, as a state machine that receives all events of Connection::run(). It has
// no sockets and no clock. io thread only.
//
// clang-format off
//
//            sayBye             byeWritten            peerBye
//    open ────────────> leaving ───────────> byeSent ─────────────────────────> closed
//     │ │                │  │                                                    ^  ^
//     │ └────────────────┼──┴── peerBye ───> peerLeft ─ byeWritten, writeFailed ─┘  │
//     │                  │                                                          │
//     ├── writeFailed ───┼────────────────> writeLost ────────── peerBye ───────────┘
//     └── readEnded ─────┴──────────────────────┴─────────────────────────────> failed
//
//    any of these except failed ── fault ───> failing     a Failure is sent to the peer
//    open, leaving, byeSent, writeLost ── failure ───> failed
//
// clang-format on
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "common/core/clock.h"

namespace cleave {

// How long a closing connection waits for its peer: while sending a Failure, and after a Bye.
inline constexpr std::chrono::seconds kFailureWait{1};
inline constexpr std::chrono::seconds kByeWait{2};

enum class EndState : std::uint8_t {
  open,
  leaving,    // our Bye will be sent after everything that is queued
  byeSent,    // waiting for the peer's Bye or the end of its stream
  peerLeft,   // the peer's Bye has arrived; ours will be sent
  closed,     // nothing more to send or to receive
  writeLost,  // writing failed; what the peer sent before may still be unread
  failing,    // our side found an error; a Failure will be sent
  failed,     // ended by an error that is not sent to the peer
};

enum class EndEvent : std::uint8_t {
  sayBye,
  byeWritten,
  peerBye,
  writeFailed,
  readEnded,  // the end of the peer's stream, or a read error
  fault,      // our side found an error
  failure,    // the peer's Failure, or an error that cannot be sent to the peer
};

class ConnectionEnd {
 public:
  EndState state() const { return state_; }
  // Whether an error has ended the connection. False in writeLost, because a Failure that explains
  // the error may still arrive.
  bool hasFailed() const { return state_ == EndState::failing || state_ == EndState::failed; }
  bool mustSayBye() const { return state_ == EndState::leaving || state_ == EndState::peerLeft; }
  // The reason of our Bye.
  const std::string& ourReason() const { return ourReason_; }
  // The Error that ends the connection. Requires writeLost, failing or failed.
  const std::exception_ptr& error() const { return error_; }
  // When run() must end, regardless of the peer. Only runBegins() can postpone it.
  const std::optional<SteadyTime>& deadline() const { return deadline_; }

  // The events, at `time`. Every exception_ptr holds an Error. Only the first `sayBye` counts, and
  // only the first `fault` or `failure`.
  void sayBye(std::string reason, SteadyTime time);
  void byeWritten(SteadyTime time);
  void peerBye(std::string reason, SteadyTime time);
  void writeFailed(std::exception_ptr error, SteadyTime time);
  void readEnded(std::exception_ptr error, SteadyTime time);
  void fault(std::exception_ptr error, SteadyTime time);
  void failure(std::exception_ptr error, SteadyTime time);

  // Call when run() begins. After an earlier fault, the time for sending the Failure starts now.
  void runBegins(SteadyTime time);
  // The result of run(): the peer's reason, or ours if the peer sent none; throws error(). Requires
  // that reading and writing have ended, or that the deadline has passed.
  const std::string& outcome() const;

 private:
  bool apply(EndEvent event, SteadyTime time);

  EndState state_ = EndState::open;
  std::exception_ptr error_;
  std::string ourReason_ = "done";  // sent if the peer says Bye first
  std::string peerReason_;
  std::optional<SteadyTime> deadline_;
};

}  // namespace cleave
