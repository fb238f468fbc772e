#include "tools/link/shaper.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "common/core/random.h"

namespace cleave::link {
namespace {

using std::chrono::milliseconds;

constexpr double kSegmentSeconds = 2e-3;
constexpr double kMinSegment = 64 << 10;
constexpr double kMaxSegment = 1 << 20;
constexpr double kChunkSeconds = 250e-6;
constexpr std::size_t kMaxChunkPackets = 45;  // 64 KiB
// Rate for computing the window of a link without a rate limit. It is higher than loopback's.
constexpr double kUnlimitedRate = 2.5e9;
constexpr std::size_t kMaxUnlimitedWindow = std::size_t{64} << 20;
// If a call of advance() is late, a sender with more data may recover at most this much of the lost
// time.
constexpr Time kMaxCatchUp = milliseconds(100);
// The number of later packets after which TCP detects a loss (duplicate acknowledgements).
constexpr std::size_t kRevealingPackets = 3;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

double uniform(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

std::size_t chunkBytes(double rate) {
  if (rate == 0) return kMaxChunkPackets * kPacketBytes;
  const double packets = std::floor(rate * kChunkSeconds / kPacketBytes);
  return static_cast<std::size_t>(std::clamp<double>(packets, 1, kMaxChunkPackets)) * kPacketBytes;
}

}  // namespace

std::size_t segmentBytes(double rate) {
  if (rate == 0) return static_cast<std::size_t>(kMaxSegment);
  return static_cast<std::size_t>(std::clamp(rate * kSegmentSeconds, kMinSegment, kMaxSegment));
}

std::size_t windowBytes(double rate, Time roundTrip) {
  if (rate == 0) {
    return std::min(
        kMaxUnlimitedWindow,
        segmentBytes(rate) + static_cast<std::size_t>(kUnlimitedRate * seconds(roundTrip)));
  }
  return segmentBytes(rate) + static_cast<std::size_t>(rate * seconds(roundTrip));
}

Shaper::Shaper(const Profile& profile, std::uint64_t seed, std::string_view direction)
    : profile_(profile),
      seed_(seed),
      isUp_(direction == "up"),
      roundTrip_(2 * profile.latency),
      chunkBytes_(chunkBytes(profile.rate)) {
  if (profile_.queue == 0) profile_.queue = segmentBytes(profile.rate);
}

void Shaper::open(std::uint64_t connection) {
  Stream& stream = streams_[connection];
  stream.number = connection;
  drawLoss(stream);
}

void Shaper::close(std::uint64_t connection) { streams_.erase(connection); }

// ---- The sending end ----

std::size_t Shaper::room(std::uint64_t connection) const {
  const Stream& stream = at(connection);
  if (stream.mark != Mark::none || stream.queued >= profile_.queue) return 0;
  return profile_.queue - stream.queued;
}

void Shaper::push(std::uint64_t connection, std::size_t bytes, Time now, bool more) {
  advance(now);  // first sends the data that was already due
  Stream& stream = at(connection);
  assert(bytes <= profile_.queue - stream.queued && stream.mark == Mark::none);
  if (stream.queued == 0) {
    // If the sender had more data, the line was idle only because the caller was late.
    stream.readyAt = std::max(stream.readyAt, stream.more ? now - kMaxCatchUp : now);
  }
  stream.queued += bytes;
  stream.more = more;
}

void Shaper::finish(std::uint64_t connection, Time now) {
  advance(now);
  Stream& stream = at(connection);
  assert(stream.mark == Mark::none);
  if (stream.queued == 0) stream.readyAt = std::max(stream.readyAt, now);
  stream.mark = Mark::end;
}

std::size_t Shaper::abort(std::uint64_t connection, Time now) {
  advance(now);
  Stream& stream = at(connection);
  const std::size_t dropped = std::exchange(stream.queued, 0);
  stream.readyAt = std::max(stream.readyAt, now);
  stream.mark = Mark::reset;
  stream.markDeparted = false;
  return dropped;
}

// ---- The receiving end ----

Shaper::Arrived Shaper::arrived(std::uint64_t connection, Time now) {
  Stream& stream = at(connection);
  if (!down_ && !stream.dead) land(stream, now);
  return {stream.landed, stream.arrived == Mark::end, stream.arrived == Mark::reset};
}

void Shaper::take(std::uint64_t connection, std::size_t bytes, Time now) {
  Stream& stream = at(connection);
  assert(bytes <= stream.landed);
  // The line had to wait for this receiver; that time is lost.
  if (stream.windowFull) stream.readyAt = std::max(stream.readyAt, now);
  stream.landed -= bytes;
  stream.blocked = false;
  totals_.bytes += bytes;
}

void Shaper::block(std::uint64_t connection) { at(connection).blocked = true; }

// ---- The link ----

void Shaper::advance(Time now) {
  while (!down_ && free_ <= now) {
    Stream* const stream = nextInTurn(now);
    if (stream == nullptr) return;
    depart(*stream);
    turn_ = stream->number;
  }
}

bool Shaper::wantsTurn(const Stream& stream) const {
  return !stream.dead && (stream.queued > 0 || (stream.mark != Mark::none && !stream.markDeparted));
}

// The next connection in turn after the one that sent last, so that each sends one chunk per turn.
Shaper::Stream* Shaper::nextInTurn(Time now) {
  auto next = streams_.upper_bound(turn_);
  for (std::size_t tried = 0; tried < streams_.size(); ++tried, ++next) {
    if (next == streams_.end()) next = streams_.begin();
    Stream& stream = next->second;
    if (wantsTurn(stream) && (stream.queued == 0 || hasWindow(stream, now))) return &stream;
  }
  return nullptr;
}

bool Shaper::isFull(const Stream& stream) const {
  return stream.flying + (stream.blocked ? stream.landed : 0) >=
         windowBytes(profile_.rate, roundTrip_ + profile_.jitter);
}

// Whether the stream's window has room at the time when its next chunk could depart. If the caller
// is late, that time is in the past.
bool Shaper::hasWindow(Stream& stream, Time now) {
  land(stream, std::max(free_, stream.readyAt));
  while (isFull(stream) && !stream.blocked && !stream.flight.empty() &&
         stream.flight.front().due <= now) {
    stream.readyAt = std::max(stream.readyAt, stream.flight.front().due);
    land(stream, stream.readyAt);
  }
  stream.windowFull = isFull(stream);
  return !stream.windowFull;
}

void Shaper::depart(Stream& stream) {
  Chunk chunk{{}, std::min(stream.queued, chunkBytes_), Mark::none};
  Time delay = profile_.latency + drawJitter(stream);
  if (stream.queued == 0) {
    chunk.mark = stream.mark;
  } else if (stream.packets == stream.nextLost) {
    chunk.bytes = std::min(chunk.bytes, kPacketBytes);
    stream.queued -= chunk.bytes;
    const Time stall = lossDelay(stream);
    delay += stall;
    ++totals_.drops;
    totals_.stalled += stall;
    ++stream.packets;
    drawLoss(stream);
  } else {
    const std::uint64_t untilLoss = stream.nextLost - stream.packets;
    if (untilLoss < kMaxChunkPackets) {
      chunk.bytes = std::min<std::size_t>(chunk.bytes, untilLoss * kPacketBytes);
    }
    stream.queued -= chunk.bytes;
    stream.packets += (chunk.bytes + kPacketBytes - 1) / kPacketBytes;
  }
  free_ = std::max(free_, stream.readyAt - timeOf(profile_.burst)) + timeOf(chunk.bytes);
  stream.lastDue = std::max(stream.lastDue, std::max(free_, stream.readyAt) + delay);
  chunk.due = stream.lastDue;
  stream.flying += chunk.bytes;
  stream.flight.push_back(chunk);
  stream.markDeparted = chunk.mark != Mark::none;
}

void Shaper::land(Stream& stream, Time now) {
  while (!stream.flight.empty() && stream.flight.front().due <= now) {
    const Chunk& chunk = stream.flight.front();
    stream.landed += chunk.bytes;
    stream.flying -= chunk.bytes;
    stream.arrived = chunk.mark;
    stream.flight.pop_front();
  }
}

std::optional<Time> Shaper::nextWake() const {
  std::optional<Time> wake;
  const auto atLatest = [&](Time time) { wake = std::min(wake.value_or(Time::max()), time); };
  for (const auto& [number, stream] : streams_) {
    if (down_ || stream.dead) continue;
    if (!stream.flight.empty() && !stream.blocked) atLatest(stream.flight.front().due);
    if (!wantsTurn(stream) || (stream.queued > 0 && isFull(stream))) continue;
    // The wake-up may come after the line is free, but it comes before the next chunk is due and
    // before the queue is half empty.
    const Time sending = timeOf(std::min(stream.queued, chunkBytes_));
    atLatest(free_ + std::min(sending + profile_.latency, timeOf(stream.queued) / 2));
  }
  return wake;
}

void Shaper::setRate(double rate, Time now) {
  advance(now);
  const bool queueFollows = profile_.queue == segmentBytes(profile_.rate);
  profile_.rate = rate;
  if (queueFollows) profile_.queue = segmentBytes(rate);
  chunkBytes_ = chunkBytes(rate);
}

void Shaper::setLatency(Time latency, Time now) {
  advance(now);
  profile_.latency = latency;
}

void Shaper::setDown(bool down, Time now) {
  advance(now);
  if (down_ && !down) {
    free_ = std::max(free_, now);
    for (auto& [number, stream] : streams_) {
      stream.readyAt = std::max(stream.readyAt, now);
      for (Chunk& chunk : stream.flight) chunk.due = std::max(chunk.due, now + profile_.latency);
      if (!stream.flight.empty()) stream.lastDue = stream.flight.back().due;
    }
  }
  down_ = down;
}

void Shaper::kill(std::uint64_t connection) { at(connection).dead = true; }

// ---- Draws ----

// A geometric distribution: the number of packets that pass before one is lost, each with
// probability `loss`.
void Shaper::drawLoss(Stream& stream) {
  if (profile_.loss == 0) {
    stream.nextLost = std::numeric_limits<std::uint64_t>::max();
    return;
  }
  const RandomKey key = randomKey(seed_, isUp_ ? "loss up" : "loss down", {stream.number});
  const double passed = std::floor(std::log1p(-uniform(randomBits(key, stream.losses++))) /
                                   std::log1p(-profile_.loss));
  stream.nextLost = stream.packets + static_cast<std::uint64_t>(std::min(passed, 1e15));
}

Time Shaper::drawJitter(const Stream& stream) const {
  if (profile_.jitter.count() == 0) return Time(0);
  const RandomKey key = randomKey(seed_, isUp_ ? "jitter up" : "jitter down", {stream.number});
  return Time(std::llround(static_cast<double>(profile_.jitter.count()) *
                           uniform(randomBits(key, stream.packets))));
}

// A lost packet costs one round trip: later packets reveal the loss, and the packet is sent again.
// If too few packets follow, the retransmission timeout (RFC 6298, with Linux's minimum) is added.
Time Shaper::lossDelay(const Stream& stream) const {
  if (stream.more || stream.queued >= kRevealingPackets * kPacketBytes) return roundTrip_;
  return roundTrip_ + std::max(kMinTimeout, profile_.jitter);
}

Time Shaper::timeOf(std::size_t bytes) const {
  if (profile_.rate == 0) return Time(0);
  return Time(std::llround(static_cast<double>(bytes) / profile_.rate * 1e9));
}

// ---- Statistics ----

std::size_t Shaper::queuedBytes() const {
  std::size_t bytes = 0;
  for (const auto& [number, stream] : streams_) bytes += stream.queued;
  return bytes;
}

std::size_t Shaper::flightBytes() const {
  std::size_t bytes = 0;
  for (const auto& [number, stream] : streams_) bytes += stream.flying + stream.landed;
  return bytes;
}

}  // namespace cleave::link
