// Both ends of a probe session (proto/PROTOCOL.md, "Probe"), which sends streams of random bytes
// and measures how long they take. Incoming data is read into one buffer of constant size and
// discarded. Outgoing data is one block, sent repeatedly. So a large request needs no memory. io
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/core/clock.h"
#include "common/engine/schedule.h"
#include "common/net/connection.h"
#include "proto/wire.pb.h"

namespace cleave {

inline constexpr std::uint64_t kMaxProbeBytes = 1'000'000'000;         // maximum size of one stream
inline constexpr std::chrono::milliseconds kMaxProbeSession{600'000};  // enforced by the server

class ProbeLink : public FrameSink {
 public:
  // A completed stream, with the times that its receiver measured.
  struct Finished {
    bool up = false;             // client to server
    std::uint64_t bytes = 0;     // payload bytes
    double receiverSeconds = 0;  // from its first frame's metadata to its last byte
    SteadyTime at;               // client: arrival of the last byte, or of the receiver's report
  };

  // The connection is borrowed and must not run after this object is destroyed. `finished` is
  // called for streams in both directions.
  ProbeLink(Role role, Connection& connection, std::function<void(const Finished&)> finished);

  // Client only. send() sends a stream of `bytes` bytes; fetch() requests one. At most
  // one stream per direction at a time, of at most kMaxProbeBytes.
  void send(std::uint64_t bytes);
  void fetch(std::uint64_t bytes);

  // Frames with a stream's bytes that were sent or received so far.
  std::uint64_t progress() const { return progress_; }

  // These functions throw ProtocolError for anything that does not belong in a probe session.
  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override;
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

 private:
  // The streams of one direction, at most one of them in progress.
  struct Direction {
    std::uint64_t number = 0;  // number of the latest stream, from 1
    std::uint64_t bytes = 0;   // size of the latest stream
    bool busy = false;  // sender: until the Received arrives; receiver: requested or arriving
  };

  void openStream(const FrameHeader& header, std::span<const std::byte> metadata);
  void continueStream(const FrameHeader& header, std::span<const std::byte> metadata);
  void arrived(std::size_t bytes);
  void receivedFetch(std::span<const std::byte> metadata);
  void receivedReport(std::span<const std::byte> metadata);
  void push(std::uint64_t bytes);
  bool atServer() const { return role_ == Role::server; }

  const Role role_;
  Connection& connection_;
  const std::function<void(const Finished&)> finished_;
  std::vector<std::byte> scratch_;  // incoming payload, until the next frame
  Direction out_, in_;
  int unwritten_ = 0;           // our streams that the socket has not fully accepted
  std::uint64_t stream_ = 0;    // the arriving stream, or the last one that arrived
  std::uint64_t received_ = 0;  // bytes of this stream that have arrived
  bool open_ = false;           // this stream has not ended
  SteadyTime opened_;
  std::uint64_t progress_ = 0;
};

}  // namespace cleave
