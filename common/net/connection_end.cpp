#include "common/net/connection_end.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace cleave {
namespace {

using std::chrono::milliseconds;
using Event = EndEvent;
using State = EndState;

// A set of states.
template <typename... States>
constexpr unsigned anyOf(States... states) {
  return ((1u << static_cast<unsigned>(states)) | ...);
}

struct Transition {
  unsigned from;
  Event event;
  State to;
  std::optional<milliseconds> wait;  // run() ends after this time; nullopt: no new deadline
};

// The two directions end independently. These rules decide which event determines the result:
//
// - A peer that fails sends a Failure and closes. Our writing may fail before we have read that
//   Failure, which explains more than our write error. So after `writeFailed`, reading continues
//   for a second, and only the end of the peer's stream makes the write error final.
// - A peer that has sent its Bye may close without reading ours. So a write error counts only
//   before the peer's Bye, and a read error only before ours.
// - An error that our side finds counts even after the Byes, because it concerns data that arrived
//   before them.
// - The first error is the cause, and later errors are its consequences. So no transition leaves
//   `failing` or `failed`.
//
// An event that has no row for the current state is ignored.
constexpr Transition kTransitions[] = {
    // Each side sends its Bye after everything that it has queued.
    {anyOf(State::open), Event::sayBye, State::leaving, {}},
    {anyOf(State::leaving), Event::byeWritten, State::byeSent, kByeWait},
    {anyOf(State::byeSent), Event::peerBye, State::closed, kByeWait},
    // The peer has sent its Bye first, and waits at most this long for ours.
    {anyOf(State::open, State::leaving), Event::peerBye, State::peerLeft, kByeWait},
    {anyOf(State::peerLeft), Event::byeWritten, State::closed, kByeWait},
    {anyOf(State::peerLeft), Event::writeFailed, State::closed, kFailureWait},
    // The connection is lost.
    {anyOf(State::open, State::leaving), Event::writeFailed, State::writeLost, kFailureWait},
    {anyOf(State::open, State::leaving, State::writeLost), Event::readEnded, State::failed,
     milliseconds(0)},
    {anyOf(State::writeLost), Event::peerBye, State::closed, kByeWait},
    // An error that the peer reported needs no answer.
    {anyOf(State::open, State::leaving, State::byeSent, State::writeLost), Event::failure,
     State::failed, milliseconds(0)},
    // Our side found an error, and needs time to send the Failure.
    {anyOf(State::open, State::leaving, State::byeSent, State::peerLeft, State::closed,
           State::writeLost),
     Event::fault, State::failing, kFailureWait},
};

}  // namespace

// Returns whether the state has changed. If not, the caller drops the event's error or reason.
bool ConnectionEnd::apply(Event event, SteadyTime time) {
  const auto row = std::ranges::find_if(kTransitions, [&](const Transition& each) {
    return each.event == event && (each.from & anyOf(state_)) != 0;
  });
  if (row == std::end(kTransitions)) return false;
  if (row->wait) deadline_ = std::min(deadline_.value_or(SteadyTime::max()), time + *row->wait);
  return std::exchange(state_, row->to) != row->to;
}

void ConnectionEnd::sayBye(std::string reason, SteadyTime time) {
  if (apply(Event::sayBye, time)) ourReason_ = std::move(reason);
}

void ConnectionEnd::byeWritten(SteadyTime time) { apply(Event::byeWritten, time); }

void ConnectionEnd::peerBye(std::string reason, SteadyTime time) {
  if (apply(Event::peerBye, time)) peerReason_ = std::move(reason);
}

void ConnectionEnd::writeFailed(std::exception_ptr error, SteadyTime time) {
  if (apply(Event::writeFailed, time)) error_ = std::move(error);
}

void ConnectionEnd::readEnded(std::exception_ptr error, SteadyTime time) {
  // After a write error, error_ is set already.
  if (apply(Event::readEnded, time) && !error_) error_ = std::move(error);
}

void ConnectionEnd::fault(std::exception_ptr error, SteadyTime time) {
  if (apply(Event::fault, time)) error_ = std::move(error);
}

void ConnectionEnd::failure(std::exception_ptr error, SteadyTime time) {
  if (apply(Event::failure, time)) error_ = std::move(error);
}

void ConnectionEnd::runBegins(SteadyTime time) {
  if (hasFailed()) deadline_ = time + kFailureWait;
}

const std::string& ConnectionEnd::outcome() const {
  if (hasFailed() || state_ == State::writeLost) std::rethrow_exception(error_);
  if (state_ == State::byeSent) return ourReason_;
  assert(state_ == State::peerLeft || state_ == State::closed);
  return peerReason_;
}

}  // namespace cleave
