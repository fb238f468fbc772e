// One connection through the link: the sockets of both ends, and the bytes between them. The
// shapers decide how many bytes may cross and when; this class reads and writes them. io thread
// only.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "tools/link/ring.h"
#include "tools/link/shaper.h"

namespace cleave::link {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The shapers must not have a connection `number` yet, and must outlive close(). `wake` is called
  // when a socket becomes ready or fails; then call move().
  Connection(boost::asio::ip::tcp::socket client, std::uint64_t number, Shaper& up, Shaper& down,
             std::function<void()> wake);

  // Call when both sockets are connected. Bytes cross from now on.
  void start(boost::asio::ip::tcp::socket target);
  // Reads as many bytes as fit, and writes those that have arrived. Returns whether more can be
  // read immediately.
  bool move(Time now);
  // Silently stops one direction.
  void kill(bool up);
  // Resets both ends.
  void reset();
  bool isClosed() const { return closed_; }

 private:
  struct Half {
    boost::asio::ip::tcp::socket& from;
    boost::asio::ip::tcp::socket& to;
    Shaper& shaper;
    Ring ring = {};  // bytes that the shaper counts as landed, flying and queued, in this order
    bool awaitsBytes = false;   // waits until the source has bytes
    bool awaitsRoom = false;    // waits until the receiver accepts bytes
    bool ended = false;         // the source closed or was reset
    bool errorSeen = false;     // awaitError() has reported an error
    bool lost = false;          // the source was reset
    bool receiverGone = false;  // arriving bytes are dropped
    bool finished = false;      // the close was forwarded to the receiver
    bool dead = false;
  };

  bool mayRead(const Half& half) const;
  void read(Half& half, Time now);
  void write(Half& half, Time now);
  void awaitBytes(Half& half);
  void awaitRoom(Half& half);
  void awaitError(Half& half);
  void lose(Half& half, Time now);
  Half& opposite(const Half& half) { return &half == &halves_[0] ? halves_[1] : halves_[0]; }
  void close();

  const std::uint64_t number_;
  boost::asio::ip::tcp::socket client_;
  boost::asio::ip::tcp::socket target_;
  std::array<Half, 2> halves_;  // up, down
  std::function<void()> wake_;
  bool open_ = false;
  bool closed_ = false;
};

}  // namespace cleave::link
