// One direction of an emulated link: decides when the bytes of each connection arrive. It only
// counts bytes and never accesses them, reads no clock, and derives its random numbers from a
// seed, so that tests can run it in virtual time.
//
//   push ──> queue ──> the line, at `rate` ──> flight: latency, jitter, losses ──> arrived ──> take
//            one per connection, in turn       one per connection, in order
//
// The line sends one chunk at a time: at most 0.25 ms of data at the rate, clamped to [1 packet, 64
// KiB]. A chunk's due time is computed from the end of the previous chunk, not from the time of the
// call of advance(), so late calls do not change the rate.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>

namespace cleave::link {

using Time = std::chrono::nanoseconds;  // since the link began; also durations

// The payload of a TCP segment on Ethernet: the unit of loss.
inline constexpr std::size_t kPacketBytes = 1448;
// Minimum retransmission timeout of TCP, which applies if no later packets reveal the loss.
inline constexpr Time kMinTimeout = std::chrono::milliseconds(200);

struct Profile {
  double rate = 0;        // bytes per second; 0: unlimited
  Time latency{0};        // one way
  Time jitter{0};         // maximum random addition; uniform, drawn per chunk
  double loss = 0;        // probability that a packet is lost, 0…0.5
  std::size_t burst = 0;  // depth of the token bucket: bytes that may pass at once after a pause
  std::size_t queue = 0;  // maximum queued bytes per connection; 0: segmentBytes()
};

// Cleave's segment size: 2 ms of data at `rate`, clamped to [64 KiB, 1 MiB].
std::size_t segmentBytes(double rate);
// Maximum bytes of a connection between departure and take(): the data of one round trip at the
// rate, which must be in flight to fill the link, plus a segment, so that a receiver may be 2 ms
// late.
std::size_t windowBytes(double rate, Time roundTrip);

// Not thread-safe. Times must not decrease. A connection is identified by its number from open() to
// close(); the other methods require that it is open.
class Shaper {
 public:
  // `direction` ("up") and `seed` determine the random draws.
  Shaper(const Profile& profile, std::uint64_t seed, std::string_view direction);

  void open(std::uint64_t connection);
  void close(std::uint64_t connection);

  // ---- The sending end ----

  // Returns the number of bytes that fit into the connection's queue.
  std::size_t room(std::uint64_t connection) const;
  // Reports that the sender has written `bytes`, at most room(). `more`: the sender has more data
  // than fits. The line then does not count as idle until the next push(); if that is late, the
  // line can recover at most 100 ms of the lost time. When the sender has no more data, call push()
  // with 0 bytes.
  void push(std::uint64_t connection, std::size_t bytes, Time now, bool more);
  // Reports that the sender has closed the connection. The close arrives after the last byte.
  void finish(std::uint64_t connection, Time now);
  // Reports that the sender has reset the connection. Queued bytes are dropped, and the reset
  // arrives after the bytes in flight. Returns the number of dropped bytes.
  std::size_t abort(std::uint64_t connection, Time now);

  // ---- The receiving end ----

  struct Arrived {
    std::size_t bytes = 0;  // available to take
    bool end = false;       // no more bytes follow
    bool reset = false;
  };
  Arrived arrived(std::uint64_t connection, Time now);
  // Reports that the receiver has accepted this many of the arrived bytes.
  void take(std::uint64_t connection, std::size_t bytes, Time now);
  // Reports that the receiver accepts no bytes until the next take(). Arriving bytes fill its
  // window.
  void block(std::uint64_t connection);

  // ---- The link ----

  // Sends everything that can depart by `now`.
  void advance(Time now);
  // When advance() and arrived() must be called next, so that no data is late. Nullopt: not before
  // another method has been called.
  std::optional<Time> nextWake() const;

  const Profile& profile() const { return profile_; }
  void setRate(double rate, Time now);
  void setLatency(Time latency, Time now);
  // The sum of both directions' latencies, which determines the window and the delay of a loss.
  void setRoundTrip(Time roundTrip) { roundTrip_ = roundTrip; }
  // While the link is down, no data departs or arrives. Data in flight is sent again afterwards.
  void setDown(bool down, Time now);
  bool isDown() const { return down_; }
  // Silently stops this direction of the connection: no data departs or arrives from now on.
  void kill(std::uint64_t connection);

  // ---- Statistics ----

  struct Totals {
    std::uint64_t bytes = 0;  // taken
    std::uint64_t drops = 0;  // packets lost
    Time stalled{0};          // total delay caused by losses
  };
  const Totals& totals() const { return totals_; }
  std::size_t queuedBytes() const;
  std::size_t flightBytes() const;  // bytes that have departed and have not been taken

 private:
  enum class Mark : std::uint8_t { none, end, reset };
  struct Chunk {
    Time due;
    std::size_t bytes;
    Mark mark;
  };
  struct Stream {
    std::size_t queued = 0;
    std::size_t flying = 0;  // bytes in `flight`
    std::size_t landed = 0;  // bytes that have arrived and have not been taken
    std::deque<Chunk> flight;
    Mark mark = Mark::none;  // the close or reset that follows the queued bytes
    bool markDeparted = false;
    Mark arrived = Mark::none;
    Time readyAt{0};  // when the next byte or mark could have departed
    Time lastDue{0};
    bool more = false;  // `more` of the last push
    bool blocked = false;
    bool windowFull = false;  // the next chunk could not depart because the window was full
    bool dead = false;
    std::uint64_t number = 0;
    std::uint64_t packets = 0;   // departed packets
    std::uint64_t nextLost = 0;  // index of the next packet to be lost
    std::uint64_t losses = 0;    // number of draws so far
  };

  Stream& at(std::uint64_t connection) { return streams_.find(connection)->second; }
  const Stream& at(std::uint64_t connection) const { return streams_.find(connection)->second; }
  bool wantsTurn(const Stream& stream) const;
  Stream* nextInTurn(Time now);
  bool hasWindow(Stream& stream, Time now);
  bool isFull(const Stream& stream) const;
  void depart(Stream& stream);
  void land(Stream& stream, Time now);
  void drawLoss(Stream& stream);
  Time drawJitter(const Stream& stream) const;
  Time lossDelay(const Stream& stream) const;
  Time timeOf(std::size_t bytes) const;

  Profile profile_;
  std::uint64_t seed_;
  bool isUp_;
  Time roundTrip_{0};
  std::size_t chunkBytes_ = 0;
  Time free_{0};  // when the line is free again
  bool down_ = false;
  std::uint64_t turn_ = 0;  // the connection that sent last
  std::map<std::uint64_t, Stream> streams_;
  Totals totals_;
};

}  // namespace cleave::link
