// The engines of a run in virtual time: a client, or the members of a cohort, and one or more
// servers whose bodies follow each other. Stages compute a TinyModel and take given times. In each
// direction, a link sends one tensor after another, in the order of the schedule's priorities.
// There are no threads and no sockets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/core/random.h"
#include "common/engine/coordinator.h"
#include "common/engine/participant.h"
#include "common/engine/virtual_clock.h"
#include "tests/support/models/tiny_model.h"

namespace cleave::test {

// The durations of the scheduled kinds of actions, in the order of ActionKind. All other actions
// take no time.
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
  std::size_t bodies = 1;
  CutTensors cut = {{}};      // the tensors of every cut; stages compute with the first one only
  bool headIsFrozen = false;  // no gradient crosses the first cut
  ActionSeconds seconds = scheduledSeconds({1, 1, 1, 1, 1, 1});
  double tensorSeconds = 0;  // time for which a tensor occupies its direction
  double latency = 0;
  std::uint64_t jitterSeed = 0;  // if not 0, durations are multiplied by a random factor in [0, 2)
  StepFetch stepFetch = nullptr;
  std::uint32_t staleness = 0;
  bool hasEdges = false;                         // neighbouring bodies have direct links
  std::uint32_t replicas = 1;                    // of each body; without direct links
  std::vector<std::uint32_t> bodyReplicas = {};  // if not empty, these instead: one number per body
  std::uint32_t members = 1;                     // clients that train together; see divide()
  bool isByMember = true;                        // EngineOptions::byMember; without direct links
  double reduceSeconds = 0;  // from the last replica's Reduce until it is complete

  std::uint32_t replicasOf(std::size_t body) const {
    return bodyReplicas.empty() ? replicas : bodyReplicas.at(body);
  }
  // Whether the bodies accumulate the gradients of each member on their own.
  bool addsByMember() const { return members > 1 && isByMember && !hasEdges; }
};

// How a batch is divided. With several members, each sample belongs to a random one: shares vary
// from step to step, and are empty in some.
Division divide(const VirtualOptions& options, std::uint64_t step, std::uint32_t samples);

class VirtualRun {
 public:
  explicit VirtualRun(const VirtualOptions& options);
  ~VirtualRun();

  // Runs one batch and returns its duration in virtual seconds. Fails the test if no action can run
  // before the batch is done.
  double run(Phase phase, std::uint64_t step, std::uint32_t samples);
  // Runs consecutive training steps, the first of which is `first`, each as soon as it may begin.
  // `samples`: of each step. Returns the virtual times at which the steps ended, from the start.
  std::vector<double> train(std::uint64_t first, const std::vector<std::uint32_t>& samples);

  Coordinator& client(std::size_t member = 0) { return *clients_[member]; }
  // `server`: in model order, and the replicas of a body in rank order.
  Engine& server(std::size_t server = 0) { return *sides_[clients_.size() + server].engine; }
  // The order in which actions began since the last call, such as "F0 F1 T0": F is HeadForward or
  // BodyForward, T TailStep, H HeadBackward, B BodyBackward, W BodyWeights. Other actions are left
  // out.
  std::string takeClientOrder() { return takeOrder(0); }
  std::string takeServerOrder(std::size_t server = 0) {
    return takeOrder(clients_.size() + server);
  }
  using Versions = std::map<std::uint64_t, std::vector<float>>;
  // The state of all sides between two batches. restore() requires a new run with the same options.
  struct Saved {
    std::vector<EngineState> engines;
    std::vector<Versions> versions;
    std::vector<float> outputs;
  };
  Saved save() const;
  void restore(const Saved& saved);
  // The weights of head, bodies and tail, followed by the sum of all outputs of the tail, added in
  // the order of the members. Fails the test if members or replicas have different weights.
  std::vector<float> weights() const;
  // The gradient of the first body in each training step so far.
  const std::vector<float>& bodyGradients() const { return bodyGradients_; }
  // The maximum number of micro-batches between HeadForward and HeadBackward (in evaluation,
  // TailStep).
  std::size_t maxInFlight() const { return maxInFlight_; }
  // The maximum number of batches in progress at the same time on the client.
  std::size_t maxInProgress() const { return maxInProgress_; }

 private:
  class Link;
  // One end of the link between the client and a body, with the tensors that wait to be sent.
  struct Side {
    std::unique_ptr<Engine> engine;
    std::optional<std::size_t> body;  // empty: a client
    bool busy = false;
    std::string order;
    // The weights by number of updates, and the gradients by step. Client: of head and tail;
    // server: of its body.
    Versions versions, gradients;
    // Server of a cohort: the gradients of each member, by step.
    std::map<std::uint64_t, std::vector<float>> ofMembers;
    // Inputs of the head or the body, by step and micro-batch.
    std::map<std::pair<std::uint64_t, std::uint32_t>, float> forwardInputs;
    float outputs = 0;  // client: the sum of all outputs of the tail

    const std::vector<float>& weights() const { return versions.rbegin()->second; }
  };
  struct Direction {
    std::size_t to = 0;    // the side that receives
    std::size_t peer = 0;  // the sender, as the receiver numbers it
    Place place;           // determines the priorities
    std::vector<TensorMessage> waiting = {};
    bool sending = false;
    // A link keeps the order: later tensors arrive no earlier than tensors and control messages,
    // and later control messages no earlier than control messages.
    double lastArrival = 0;
    double lastControl = 0;
  };

  std::string takeOrder(std::size_t side);
  double jittered(double seconds);
  void beginSteps(std::size_t client);
  bool areDone() const;
  void startWork(std::size_t side);
  void reduce(std::size_t side, const Work& work);
  void countInFlight(const Work& work);
  void sumMembers(Side& side, std::uint64_t step);
  Result perform(Side& side, Work& work);
  Result perform(Side& side, Work& work, std::vector<TinyPart>& parts, std::size_t tensors);
  StepDecision decide(const std::vector<TinyPart>& parts, const Work& work) const;
  void startSending(std::size_t direction);
  void deliver(std::size_t direction, const Message& message);

  const VirtualOptions options_;
  std::vector<Place> places_;      // of the servers
  std::vector<Replica> replicas_;  // of the servers
  std::vector<Side> sides_;        // the clients, then the servers
  std::vector<Coordinator*> clients_;
  // Per client and server: down, up. Then, with direct links, per pair of neighbours: backwards,
  // forwards.
  std::vector<Direction> directions_;
  VirtualClock clock_;
  std::uint64_t draws_ = 0;
  // The steps of train(): what remains, by client, and when they ended on the first one.
  std::vector<std::deque<MicroBatch>> toBegin_;
  std::vector<double> ends_;
  // Tokens by step and body, then by rank.
  std::map<std::pair<std::uint64_t, std::size_t>, std::vector<std::uint64_t>> reductions_;
  std::size_t inFlight_ = 0;
  std::size_t maxInFlight_ = 0;
  std::size_t maxInProgress_ = 0;
  std::vector<float> bodyGradients_;
};

// Places of `count` bodies that follow each other. All cuts have these tensors.
std::vector<Place> placesInRow(std::size_t count, const CutTensors& cut = {{}});
// Copies a message. Payloads are move-only, but their memory can be shared.
Message copyOf(const Message& message);
// A tensor of one float.
Payload smallPayload(float value);
float valueOf(const Payload& payload);

}  // namespace cleave::test
