// Two engines, client and server, in virtual time: fake stages whose actions take given times, and
// a link that sends one tensor after another in each direction in the order of the schedule's
// priorities. No threads, no sockets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/engine/engine.h"
#include "common/engine/virtual_clock.h"

namespace cleave::test {

// The durations of the scheduled kinds of actions, in the order of ActionKind; all others take no
// time.
template <std::size_t N>
constexpr ActionSeconds scheduledSeconds(const double (&seconds)[N]) {
  static_assert(N == kScheduledKinds, "one value per kind of action that a schedule orders");
  ActionSeconds all{};
  std::copy(std::begin(seconds), std::end(seconds), all.begin());
  return all;
}

struct VirtualOptions {
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 4;
  std::uint32_t inFlight = 0;  // 0: the schedule's default
  ActionSeconds seconds = scheduledSeconds({1, 1, 1, 1, 1});
  double tensorSeconds = 0;  // time that a tensor occupies its direction
  double latency = 0;
  std::uint64_t jitterSeed = 0;  // not 0: multiplies durations by a random factor in [0, 2)
  bool fetchGradients = false;
};

class VirtualPair {
 public:
  explicit VirtualPair(const VirtualOptions& options);
  ~VirtualPair();

  // Runs one batch to its end and returns its duration in virtual seconds. Fails the test if
  // nothing can run but the batch is not done.
  double run(Phase phase, std::uint64_t step, std::uint32_t samples);

  Engine& engine(Role role);
  // The order in which actions began since the last call, "F0 F1 T0 …": F HeadForward or
  // BodyForward, T TailStep, H HeadBackward, B BodyBackward; others are left out.
  std::string takeOrder(Role role);
  // A number that depends on every action of that side and, within each kind, on their order.
  std::uint64_t fingerprint(Role role) const;
  // Maximum number of micro-batches between HeadForward and HeadBackward (eval: TailStep).
  std::size_t mostInFlight() const { return mostInFlight_; }
  // Delivers `message` to `role` out of order. Throws the engine's error.
  void inject(Role role, Message message);

 private:
  class Link;
  struct Side {
    std::unique_ptr<Link> link;
    std::unique_ptr<Engine> engine;
    bool busy = false;
    std::string order;
    std::array<std::uint64_t, kActionKinds> hashes{};
    std::vector<TensorMessage> outgoing;  // waiting for their direction
    bool sending = false;
  };
  Side& side(Role role) { return sides_[static_cast<std::size_t>(role)]; }
  double jittered(double seconds);
  void startWork(Role role);
  void countInFlight(const Work& work);
  Result perform(Side& side, const Work& work);
  void startSending(Role role);
  void deliver(Role to, const Message& message);

  VirtualOptions options_;
  std::array<Side, 2> sides_;
  VirtualClock clock_;
  std::uint64_t draws_ = 0;
  std::size_t inFlight_ = 0;
  std::size_t mostInFlight_ = 0;
};

// A copy of a message: payloads are move-only, but their memory can be shared.
Message copyOf(const Message& message);
// A tensor of one float.
Payload smallPayload(float value);

}  // namespace cleave::test
