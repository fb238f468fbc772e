// Two engines, client and server, in virtual time: fake stages whose actions take given times, and
// a link that sends one tensor after another in each direction, by the schedule's priority. No
// threads, no sockets.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/pipeline/engine.h"
#include "common/pipeline/virtual_clock.h"

namespace cleave::test {

struct VirtualOptions {
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 4;
  std::uint32_t inFlight = 0;  // 0: the schedule's default
  std::array<double, kActionKinds> seconds{1, 1, 1, 1, 1, 0, 0, 0, 0};
  double tensorSeconds = 0;  // a tensor occupies its direction for so long
  double latency = 0;
  std::uint64_t jitterSeed = 0;  // not 0: every duration is multiplied by a random factor in [0, 2)
  bool everythingTwice = false;  // every message is delivered twice
  bool fetchGradients = false;
};

class VirtualPair {
 public:
  explicit VirtualPair(const VirtualOptions& options);
  ~VirtualPair();

  // Runs one batch to its end and returns how long it took, in virtual seconds. Fails the test
  // where nothing can run and the batch is not done.
  double run(Phase phase, std::uint64_t step, std::uint32_t samples);

  Engine& engine(Role role);
  // The actions in the order they began, "F0 F1 T0 …": F HeadForward or BodyForward, T TailStep, H
  // HeadBackward, B BodyBackward; the others are left out. Since the last call.
  std::string takeOrder(Role role);
  // A number that depends on every action of that side and, within each kind, on their order.
  std::uint64_t fingerprint(Role role) const;
  // Micro-batches between their HeadForward and their HeadBackward (eval: TailStep).
  std::size_t mostInFlight() const { return mostInFlight_; }
  // What the server was asked for again and sent again, and what it no longer had.
  int resent() const { return resent_; }
  int notKept() const { return notKept_; }
  std::size_t kept() const { return kept_.size(); }
  // Delivers `message` to `role` out of turn. Throws what the engine throws.
  void inject(Role role, Message message);

 private:
  class Link;
  struct Side {
    std::unique_ptr<Link> link;
    std::unique_ptr<Engine> engine;
    bool busy = false;
    std::string order;
    std::array<std::uint64_t, kActionKinds> hashes{};
    std::vector<TensorMessage> outgoing;  // wait for their direction
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
  int resent_ = 0;
  int notKept_ = 0;
  std::map<Key, TensorMessage> kept_;  // the server's
};

// A message again: payloads are move-only, but their memory can be shared.
Message copyOf(const Message& message);
// A tensor of one float.
Payload smallPayload(float value);

}  // namespace cleave::test
