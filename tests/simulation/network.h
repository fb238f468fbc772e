// The network between the client and the server of a simulation: a relay with delays that can cut
// all connections, or stop forwarding.
#pragma once

#include <cstdint>

#include "tests/simulation/world.h"

namespace cleave::sim {

inline constexpr std::uint16_t kPortOfNetwork = 4800;  // the client connects to it
inline constexpr std::uint16_t kPortOfServer = 4801;

// Runs the network on a thread of the director, forever. Call once.
void startNetwork();
// Cuts all connections after this many more bytes have been delivered in both directions together.
// Another call replaces the number.
void cutNetworkAfter(std::uint64_t bytes);
void silenceNetwork(Nanoseconds until);
// Cuts all connections every two seconds.
void cutNetworkAgainAndAgain(Nanoseconds until);
// Maximum delay; initially 3 ms.
void setNetworkDelay(Nanoseconds delay);
std::uint64_t networkBytes();

}  // namespace cleave::sim
