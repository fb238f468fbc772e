// Messages between a replica and the hub of its group, over one TCP connection.
//
//   u32 size of the rest, little-endian | u8 kind | u8 size of the key | key | value
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/core/clock.h"
#include "common/core/units.h"
#include "common/net/streams/relay_protocol.h"

namespace cleave {

struct GroupMessage {
  enum class Kind : std::uint8_t {
    alive,     // sent at least once per second
    accepted,  // hub: the first message but `alive`; key: the hub's proof (group_hub.h)
    taken,     // hub, instead of `accepted`: another connection has this rank; key: proof
    differs,   // hub, instead of `accepted`: value: a sentence; key: proof
    missing,   // hub: value: the ranks that have not joined, a byte each; empty: all have joined
    value,     // a replica, then the hub to all replicas
    lost,      // hub: the group has ended; key: the rank that is lost, a byte; value: why
  };
  Kind kind = Kind::alive;
  std::string key = {};
  std::string value = {};
};

inline constexpr std::size_t kMaxKeyBytes = 255;
inline constexpr std::size_t kMaxValueBytes = 16 << 10;
inline constexpr std::size_t kMaxQueuedBytes = 4 * kMiB;  // of messages that wait to be sent

// All functions: io thread.
class GroupConnection : public std::enable_shared_from_this<GroupConnection> {
 public:
  // Ends if the peer sends nothing for `timeout`.
  GroupConnection(SharedSocket socket, std::chrono::milliseconds timeout);

  // Passes the messages except `alive` to `received`, until the connection ends; returns why. The
  // caller keeps the object alive until then.
  boost::asio::awaitable<std::string> run(std::function<void(GroupMessage)> received);

  // Ends the connection if the peer reads too slowly: more than kMaxQueuedBytes are queued.
  void send(const GroupMessage& message);
  // Closes after everything sent is written and the peer has closed too, or after 2 s.
  void finish();
  void close(const std::string& reason);

 private:
  boost::asio::awaitable<GroupMessage> read();
  void write();
  void watch();

  const SharedSocket socket_;
  const std::chrono::milliseconds timeout_;
  boost::asio::steady_timer timer_;
  SteadyTime heard_ = now();  // when the last message arrived
  SteadyTime finishing_{};    // when finish() was called
  bool isFinishing_ = false;
  bool isClosed_ = false;
  std::string reason_;
  std::deque<std::string> queue_;  // the first is being written
  std::size_t queuedBytes_ = 0;
};

}  // namespace cleave
