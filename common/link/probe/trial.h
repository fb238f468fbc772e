// A trial session: a client's run that leaves no records on the server (proto/PROTOCOL.md,
// "Trial").
#pragma once

#include <chrono>
#include <cstdint>

namespace cleave {

inline constexpr std::uint64_t kMaxTrialBatches = 100;  // of training and evaluation together
inline constexpr std::chrono::milliseconds kMaxTrialSession{600'000};  // enforced by the server

}  // namespace cleave
