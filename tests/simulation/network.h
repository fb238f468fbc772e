// The network between the client and the server of a simulation: a relay with delays that can cut
// all connections, or stop forwarding.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/simulation/world.h"

namespace cleave::sim {

inline constexpr std::uint16_t kPortOfNetwork = 4800;  // the client connects to it
inline constexpr std::uint16_t kPortOfServer = 4801;

// Runs the network on a thread of the director, forever. Call once.
void startNetwork();
// Cuts all connections after this many more bytes have been delivered in both directions together.
// Another call replaces the number.
void cutNetworkAfter(std::uint64_t bytes);
// Cuts all connections after this frame, counted like networkFrames().
void cutNetworkAfterFrame(std::uint64_t frame);
void silenceNetwork(Nanoseconds until);
// Cuts all connections every two seconds. A time that has passed ends it.
void cutNetworkAgainAndAgain(Nanoseconds until);
// Maximum delay; initially 3 ms.
void setNetworkDelay(Nanoseconds delay);
std::uint64_t networkBytes();
// The number of frames that have been delivered in both directions together. Frames inside TLS are
// not counted.
std::uint64_t networkFrames();
// networkFrames() after each frame Step that has been delivered.
const std::vector<std::uint64_t>& framesAtSteps();

}  // namespace cleave::sim
