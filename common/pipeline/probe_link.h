// Both ends of a probe session (proto/PROTOCOL.md, "Probe"): streams that mean nothing, sent to see
// how long they take. What arrives is read into one buffer of constant size and dropped, what
// leaves is one block over and over, so that no request costs memory of its size. io thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "common/core/clock.h"
#include "common/net/connection.h"
#include "common/pipeline/schedule.h"
#include "proto/wire.pb.h"

namespace cleave {

inline constexpr std::string_view kProbeFeature = "probe";             // in Hello and HelloOk
inline constexpr std::uint64_t kMaxProbeBytes = 1'000'000'000;         // of one stream
inline constexpr std::chrono::milliseconds kMaxProbeSession{600'000};  // the server ends it then

class ProbeLink : public FrameSink {
 public:
  // A stream that came to its end, as its receiver saw it.
  struct Finished {
    bool up = false;             // from client to server
    std::uint64_t bytes = 0;     // of payload
    double receiverSeconds = 0;  // from its first frame's metadata to its last byte
    SteadyTime at;               // client: the last byte's arrival, or that of the receiver's word
  };

  // The connection is borrowed, and not run any more once this is gone. `finished` is called for
  // streams either way.
  ProbeLink(Role role, Connection& connection, std::function<void(const Finished&)> finished);

  // The client's: sends so many bytes; asks for so many. One of each at a time, of at most
  // kMaxProbeBytes.
  void send(std::uint64_t bytes);
  void fetch(std::uint64_t bytes);

  // Throw ProtocolError for whatever does not belong into a probe session.
  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override;
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

 private:
  // Of the streams of one direction, of which one at a time is under way.
  struct Direction {
    std::uint64_t number = 0;  // of the last stream, from 1
    std::uint64_t bytes = 0;   // of that
    bool busy = false;         // sender: until its Received; receiver: asked for, or arriving
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
  std::vector<std::byte> scratch_;  // whatever arrives, until the next frame does
  Direction out_, in_;
  int unwritten_ = 0;           // streams of ours that the socket has not taken whole
  std::uint64_t stream_ = 0;    // the one that arrives, or arrived last
  std::uint64_t received_ = 0;  // bytes of it
  bool open_ = false;           // it has not come to its end
  SteadyTime opened_;
};

}  // namespace cleave
