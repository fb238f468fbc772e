#include "tests/simulation/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/net/frames/frame.h"

namespace cleave::sim {
namespace {

constexpr std::size_t kMaxHeld = 64 << 10;  // bytes in transit, per direction
constexpr Nanoseconds kBetweenCuts = 2 * kSecond;

struct Packet {
  Nanoseconds arrival = 0;
  std::vector<char> bytes;  // empty: the end of the stream
  std::size_t done = 0;
};

// Follows the frames of a stream. A stream of TLS has none.
class FrameCounter {
 public:
  // The number of bytes up to the end of the current header or the current frame.
  std::size_t left() const {
    if (isTls_) return SIZE_MAX;
    return have_ < kHeaderBytes ? kHeaderBytes - have_ : body_;
  }
  // Adds the next bytes, at most left(). Returns the kind of the frame that they complete, if any.
  std::optional<FrameKind> add(std::span<const std::byte> bytes) {
    if (have_ == 0 && bytes[0] != static_cast<std::byte>(kMagic[0])) isTls_ = true;
    if (isTls_) return std::nullopt;
    if (have_ < kHeaderBytes) {
      std::copy(bytes.begin(), bytes.end(), header_.begin() + static_cast<std::ptrdiff_t>(have_));
      have_ += bytes.size();
      if (have_ < kHeaderBytes) return std::nullopt;
      const FrameHeader header = decodeHeader(header_);
      kind_ = header.kind;
      body_ = std::size_t{header.metadataBytes} + header.payloadBytes;
    } else {
      body_ -= bytes.size();
    }
    if (body_ > 0) return std::nullopt;
    have_ = 0;
    return kind_;
  }

 private:
  HeaderBytes header_{};
  std::size_t have_ = 0;  // bytes of the header
  std::size_t body_ = 0;  // bytes of metadata and payload that are still missing
  FrameKind kind_ = FrameKind::hello;
  bool isTls_ = false;
};

struct Direction {
  int from = -1, to = -1;
  std::deque<Packet> packets;
  std::size_t held = 0;
  bool ended = false;      // the stream of `from` has ended
  bool forwarded = false;  // `to` has been notified of the end
  FrameCounter frames;     // of the delivered bytes
};

struct Link {
  std::array<Direction, 2> ways;
};

struct Network {
  std::vector<std::unique_ptr<Link>> links;
  std::uint64_t bytes = 0;
  std::uint64_t cutAt = UINT64_MAX;
  std::uint64_t frames = 0;
  std::uint64_t cutAtFrame = UINT64_MAX;
  std::vector<std::uint64_t> framesAtSteps;
  Nanoseconds silentUntil = 0;
  Nanoseconds nextCut = kNever, lastCut = 0;  // times of the repeated cuts
  Nanoseconds maxDelay = 3'000'000;
};

Network& network() {
  static auto* const network = new Network;
  return *network;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void acceptOne(int listener) {
  const int client = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
  if (client < 0) return;
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const sockaddr_in address = loopback(kPortOfServer);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(client);
    ::close(server);
    return;
  }
  auto link = std::make_unique<Link>();
  link->ways[0] = {client, server, {}, 0, false, false, {}};
  link->ways[1] = {server, client, {}, 0, false, false, {}};
  network().links.push_back(std::move(link));
}

void closeLink(Link& link) {
  ::close(link.ways[0].from);
  ::close(link.ways[0].to);
}

void cut() {
  for (const auto& link : network().links) closeLink(*link);
  network().links.clear();
}

void readFrom(Direction& way) {
  std::array<char, 4096> buffer;
  const std::size_t size = 1 + draw(buffer.size());
  const ssize_t got = ::read(way.from, buffer.data(), size);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const Nanoseconds last = way.packets.empty() ? 0 : way.packets.back().arrival;
  Packet packet;
  packet.arrival = std::max(
      last, now() + static_cast<Nanoseconds>(draw(static_cast<std::uint64_t>(network().maxDelay))));
  if (got > 0) {
    packet.bytes.assign(buffer.data(), buffer.data() + got);
    way.held += packet.bytes.size();
  } else {
    way.ended = true;
  }
  way.packets.push_back(std::move(packet));
}

// Returns whether this frame is the last one before a cut.
bool countFrame(FrameKind kind) {
  Network& net = network();
  ++net.frames;
  if (kind == FrameKind::step) net.framesAtSteps.push_back(net.frames);
  if (net.frames != net.cutAtFrame) return false;
  net.cutAtFrame = UINT64_MAX;
  return true;
}

// Returns false if the link has been cut.
bool deliver(Direction& way) {
  Network& net = network();
  while (!way.packets.empty() && way.packets.front().arrival <= now()) {
    Packet& packet = way.packets.front();
    if (packet.bytes.empty()) {
      way.forwarded = true;
      ::shutdown(way.to, SHUT_WR);
      way.packets.pop_front();
      continue;
    }
    std::size_t size = std::min(packet.bytes.size() - packet.done, way.frames.left());
    if (net.cutAt - net.bytes < size) size = net.cutAt - net.bytes;
    const ssize_t sent =
        size == 0 ? 0 : ::send(way.to, packet.bytes.data() + packet.done, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) return true;
    if (sent < 0) {  // the receiver is gone, so its packets are dropped
      way.held -= packet.bytes.size() - packet.done;
      way.packets.pop_front();
      continue;
    }
    const auto delivered =
        std::as_bytes(std::span(packet.bytes)).subspan(packet.done, static_cast<std::size_t>(sent));
    packet.done += static_cast<std::size_t>(sent);
    way.held -= static_cast<std::size_t>(sent);
    net.bytes += static_cast<std::uint64_t>(sent);
    bool isCut = net.bytes == net.cutAt;
    if (isCut) net.cutAt = UINT64_MAX;
    if (const auto kind = way.frames.add(delivered)) isCut = countFrame(*kind) || isCut;
    if (packet.done == packet.bytes.size()) way.packets.pop_front();
    if (isCut) {
      cut();
      return false;
    }
  }
  return true;
}

bool deliverAll() {
  for (const auto& link : network().links) {
    for (Direction& way : link->ways) {
      if (!deliver(way)) return false;
    }
  }
  std::erase_if(network().links, [](const auto& link) {
    const bool isOver = link->ways[0].forwarded && link->ways[1].forwarded;
    if (isOver) closeLink(*link);
    return isOver;
  });
  return true;
}

void serve() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const sockaddr_in address = loopback(kPortOfNetwork);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 16) != 0) {
    ::perror("simulation: the network cannot listen");
    ::_exit(3);
  }
  for (;;) {
    if (network().nextCut <= now()) {
      cut();
      network().nextCut = now() < network().lastCut ? now() + kBetweenCuts : kNever;
    }
    const bool isSilent = network().silentUntil > now();
    if (!isSilent && !deliverAll()) continue;
    Nanoseconds next = std::min(isSilent ? network().silentUntil : kNever, network().nextCut);
    std::vector<pollfd> files{{isSilent ? -1 : listener, POLLIN, 0}};
    std::vector<Direction*> reading{nullptr};
    for (const auto& link : network().links) {
      for (Direction& way : link->ways) {
        if (!way.packets.empty() && !isSilent) {
          if (way.packets.front().arrival > now()) {
            next = std::min(next, way.packets.front().arrival);
          } else {
            files.push_back({way.to, POLLOUT, 0});
            reading.push_back(nullptr);
          }
        }
        if (way.ended || way.held >= kMaxHeld) continue;
        files.push_back({way.from, POLLIN, 0});
        reading.push_back(&way);
      }
    }
    const Nanoseconds wait = next == kNever ? 100'000'000 : std::max<Nanoseconds>(next - now(), 0);
    ::poll(files.data(), files.size(),
           static_cast<int>(std::min<Nanoseconds>(wait / 1'000'000 + 1, 100)));
    for (std::size_t i = 1; i < files.size(); ++i) {
      if (reading[i] != nullptr && files[i].revents != 0) readFrom(*reading[i]);
    }
    if (files[0].revents != 0) acceptOne(listener);
  }
}

}  // namespace

void startNetwork() { start(kDirector, serve); }
void cutNetworkAfter(std::uint64_t bytes) {
  network().cutAt = network().bytes + std::max<std::uint64_t>(bytes, 1);
}
void cutNetworkAfterFrame(std::uint64_t frame) { network().cutAtFrame = frame; }
void silenceNetwork(Nanoseconds until) { network().silentUntil = until; }
void cutNetworkAgainAndAgain(Nanoseconds until) {
  network().nextCut = until > now() ? now() : kNever;
  network().lastCut = until;
}
void setNetworkDelay(Nanoseconds delay) { network().maxDelay = delay; }
std::uint64_t networkBytes() { return network().bytes; }
std::uint64_t networkFrames() { return network().frames; }
const std::vector<std::uint64_t>& framesAtSteps() { return network().framesAtSteps; }

}  // namespace cleave::sim
