// The network between the client and the server of a simulation: a relay with delays, which can cut
// all connections, go silent, or damage a byte.
#pragma once

#include <cstdint>

#include "tests/simulation/world.h"

namespace cleave::sim {

inline constexpr std::uint16_t kPortOfNetwork = 4800;  // the client connects to it
inline constexpr std::uint16_t kPortOfServer = 4801;

// Runs the network on a thread of the director, for ever. Call once.
void startNetwork();
// The next call of these counts once its time has come. Bytes are those that arrive.
void cutNetworkAfter(std::uint64_t bytes);
void damageNetworkAfter(std::uint64_t bytes);
void silenceNetwork(Nanoseconds until);
std::uint64_t networkBytes();

}  // namespace cleave::sim
