// One direction of an emulated link: when which bytes of which connection arrive. It counts bytes
// and never sees them, reads no clock and draws no random number that its key does not give, so
// that tests drive it with virtual time.
//
//   push ──> queue ──> the line, at `rate` ──> flight: latency, jitter, losses ──> arrived ──> take
//            one a connection, in turn         one a connection, in order
//
// The line sends one chunk at a time: at most 0.25 ms of the rate, from 1 packet to 64 KiB. What
// departs has its due time computed from the end of the chunk before it, not from when advance()
// was called, so that a caller who comes late changes no rate.
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

// What TCP sends at once over Ethernet: the unit of loss.
inline constexpr std::size_t kPacketBytes = 1448;
// The least time-out after which TCP sends a packet again of whose loss no later packet told.
inline constexpr Time kLeastTimeout = std::chrono::milliseconds(200);

struct Profile {
  double rate = 0;        // bytes a second; 0: without limit
  Time latency{0};        // one way
  Time jitter{0};         // up to so much more: uniform, drawn for each chunk
  double loss = 0;        // probability that a packet is lost, 0…0.5
  std::size_t burst = 0;  // bytes that may pass at once after a rest (the depth of a token bucket)
  std::size_t queue = 0;  // bytes of one connection that may wait for the line; 0: segmentBytes()
};

// 2 ms of the rate, at least 64 KiB, at most 1 MiB: what the daemons send as one segment.
std::size_t segmentBytes(double rate);
// Most bytes of a connection between departure and take(): a round trip of the rate, as much as a
// sender must have under way to fill the link, and a segment, so that a receiver may be 2 ms late.
std::size_t windowBytes(double rate, Time roundTrip);

// Not thread-safe. Times must not go back. A connection is known by its number, from open() to
// close(); other methods require that it is open.
class Shaper {
 public:
  // `direction` ("up") and `seed` name the random draws.
  Shaper(const Profile& profile, std::uint64_t seed, std::string_view direction);

  void open(std::uint64_t connection);
  void close(std::uint64_t connection);

  // ---- The sending end ----

  // Bytes that its queue has room for.
  std::size_t room(std::uint64_t connection) const;
  // Bytes that the sender wrote; at most room(). `more`: it has more to write than there was room
  // for: the line does not count as idle until the next push, unless that comes 100 ms late. To be
  // called with 0 bytes once it has no more.
  void push(std::uint64_t connection, std::size_t bytes, Time now, bool more);
  // The sender wrote its last byte: the end follows it.
  void finish(std::uint64_t connection, Time now);
  // The sender reset the connection: what waits in its queue is dropped, the reset follows what is
  // in flight. Returns the bytes dropped.
  std::size_t abort(std::uint64_t connection, Time now);

  // ---- The receiving end ----

  struct Arrived {
    std::size_t bytes = 0;  // to take
    bool end = false;       // and nothing follows them
    bool reset = false;
  };
  Arrived arrived(std::uint64_t connection, Time now);
  // The receiver took so many of what arrived.
  void take(std::uint64_t connection, std::size_t bytes, Time now);
  // The receiver takes no more until the next take(): what has arrived fills its window.
  void block(std::uint64_t connection);

  // ---- The link ----

  // Lets depart what can by `now`.
  void advance(Time now);
  // When to call advance() and arrived() next, so that nothing is late; none: after the next call
  // of something else.
  std::optional<Time> nextWake() const;

  const Profile& profile() const { return profile_; }
  void setRate(double rate, Time now);
  void setLatency(Time latency, Time now);
  // The latencies of both directions, for the window and the time that a loss costs.
  void setRoundTrip(Time roundTrip) { roundTrip_ = roundTrip; }
  // While the link is down nothing departs or arrives. What was in flight is then sent again.
  void setDown(bool down, Time now);
  bool isDown() const { return down_; }
  // The connection's direction dies: nothing of it departs or arrives any more.
  void kill(std::uint64_t connection);

  // ---- Figures ----

  struct Totals {
    std::uint64_t bytes = 0;  // taken
    std::uint64_t drops = 0;  // packets lost
    Time stalled{0};          // the sum of the delays that losses caused
  };
  const Totals& totals() const { return totals_; }
  std::size_t queuedBytes() const;
  std::size_t flightBytes() const;  // departed, not taken

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
    std::size_t landed = 0;  // arrived, not taken
    std::deque<Chunk> flight;
    Mark mark = Mark::none;  // to follow what is queued
    bool markDeparted = false;
    Mark arrived = Mark::none;
    Time readyAt{0};  // since when the next byte or mark could depart
    Time lastDue{0};
    bool more = false;  // the last push's
    bool blocked = false;
    bool windowFull = false;  // it could not depart for that
    bool dead = false;
    std::uint64_t number = 0;
    std::uint64_t packets = 0;   // departed
    std::uint64_t nextLost = 0;  // the packet that will be lost next
    std::uint64_t losses = 0;    // drawn so far
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
  Time free_{0};  // when the line has sent what has departed
  bool down_ = false;
  std::uint64_t turn_ = 0;  // the connection that sent last
  std::map<std::uint64_t, Stream> streams_;
  Totals totals_;
};

}  // namespace cleave::link
