#include "common/predict/simulator.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "common/core/random.h"
#include "common/engine/virtual_clock.h"
#include "common/net/frame.h"

namespace cleave {
namespace {

constexpr std::array kClientKinds = {ActionKind::headForward, ActionKind::tailStep,
                                     ActionKind::headBackward};
constexpr std::array kServerKinds = {ActionKind::bodyForward, ActionKind::bodyBackward};

struct QueuedTensor {
  Flow flow;
  std::uint32_t i;
  int priority;
  double bytesLeft;
};

struct Direction {
  double rate = 0;
  double segment = 0;                // bytes
  double ahead = 0;                  // seconds of chosen data left to send when more is chosen
  std::vector<QueuedTensor> queued;  // by priority, then by arrival
  bool choosing = false;             // sendNext() is scheduled on the clock
  double freeAt = 0;                 // when all chosen segments have crossed
};

struct Device {
  Role role;
  bool busy = false;
  std::array<std::uint32_t, kScheduledKinds> started{};
  // Micro-batches whose input has arrived, by flow; those below `started` have been consumed.
  std::array<std::vector<bool>, kTensorFlows> arrived;
};

class Simulation {
 public:
  Simulation(const StepCosts& costs, const Policy& policy, bool withTimeline)
      : costs_(costs), policy_(policy), withTimeline_(withTimeline) {
    for (const Role role : {Role::client, Role::server}) {
      Device& device = devices_[static_cast<std::size_t>(role)];
      device.role = role;
      device.arrived.fill(std::vector<bool>(costs.microBatches));
    }
    for (const bool up : {true, false}) {
      Direction& direction = directionOf(up);
      direction.rate = up ? costs.rateUp : costs.rateDown;
      direction.segment = static_cast<double>(segmentBytesFor(direction.rate));
      // A connection chooses its next segment when less than half a segment is unsent
      // (FrameStream::readyToWrite).
      direction.ahead = (direction.segment / 2 + costs.queueBytes) / direction.rate;
    }
  }

  SimulatedStep run() {
    startWork(devices_[0]);
    while (clock_.runNext()) {
    }
    if (backwardsDone_ < costs_.microBatches) {
      throw std::logic_error("the simulated step stands still");
    }
    step_.seconds = clock_.now() + costs_.updateSeconds;
    return std::move(step_);
  }

 private:
  Direction& directionOf(bool up) { return directions_[up ? 0 : 1]; }

  void note(Span::Lane lane, std::string_view what, std::uint32_t i, double begin, double end) {
    if (!withTimeline_ || end == begin) return;
    step_.timeline.push_back({lane, std::string(what) + " " + std::to_string(i), begin, end});
  }

  // ---- Devices ----

  bool inputArrived(const Device& device, ActionKind kind) const {
    const std::uint32_t i = device.started[indexOf(kind)];
    return i < costs_.microBatches && device.arrived[indexOf(*flowsOf(kind).input)][i];
  }

  ReadyKinds readyKinds(const Device& device) const {
    ReadyKinds kinds;
    const auto set = [&](ActionKind kind, bool ready) { kinds.ready[indexOf(kind)] = ready; };
    if (device.role == Role::server) {
      for (const ActionKind kind : kServerKinds) set(kind, inputArrived(device, kind));
      return kinds;
    }
    const std::uint32_t begun = device.started[indexOf(ActionKind::headForward)];
    set(ActionKind::headForward,
        begun < costs_.microBatches &&
            begun - device.started[indexOf(ActionKind::headBackward)] < policy_.inFlight);
    set(ActionKind::tailStep, inputArrived(device, ActionKind::tailStep));
    set(ActionKind::headBackward, inputArrived(device, ActionKind::headBackward));
    return kinds;
  }

  void startWork(Device& device) {
    if (device.busy) return;
    const ReadyKinds ready = readyKinds(device);
    if (!ready.any()) return;
    const StageState state{device.role, Phase::train, costs_.microBatches,
                           std::min(policy_.inFlight, costs_.microBatches), device.started};
    const std::optional<ActionKind> kind = policy_.pick(ready, state);
    if (!kind) return;
    const std::uint32_t i = device.started[indexOf(*kind)]++;
    const double end = clock_.now() + costs_.of(*kind);
    note(device.role == Role::client ? Span::Lane::client : Span::Lane::server, actionName(*kind),
         i, clock_.now(), end);
    device.busy = true;
    clock_.at(end, [this, &device, kind = *kind, i] { finishWork(device, kind, i); });
  }

  void finishWork(Device& device, ActionKind kind, std::uint32_t i) {
    device.busy = false;
    if (kind == ActionKind::headBackward) ++backwardsDone_;
    if (const auto flow = flowsOf(kind).output) encode(*flow, i);
    startWork(device);
  }

  // ---- Codecs ----

  // Returns the time at which it is done.
  double runCodec(bool atClient, const char* what, Flow flow, std::uint32_t i, double seconds) {
    if (seconds == 0) return clock_.now();
    double& freeAt = codecFreeAt_[atClient ? 0 : 1];
    const double begin = std::max(clock_.now(), freeAt);
    freeAt = begin + seconds;
    if (withTimeline_) {
      note(atClient ? Span::Lane::clientCodec : Span::Lane::serverCodec,
           std::string(what) + std::string(flowName(flow)), i, begin, freeAt);
    }
    return freeAt;
  }

  void encode(Flow flow, std::uint32_t i) {
    const double done =
        runCodec(isUp(flow), "encode ", flow, i, costs_.encodeSeconds[indexOf(flow)]);
    clock_.at(done, [this, flow, i] { queue(flow, i); });
  }

  void decode(Flow flow, std::uint32_t i) {
    const double done =
        runCodec(!isUp(flow), "decode ", flow, i, costs_.decodeSeconds[indexOf(flow)]);
    clock_.at(done, [this, flow, i] { arrive(flow, i); });
  }

  void arrive(Flow flow, std::uint32_t i) {
    Device& device = devices_[isUp(flow) ? 1 : 0];
    device.arrived[indexOf(flow)][i] = true;
    startWork(device);
  }

  // ---- The link ----

  void queue(Flow flow, std::uint32_t i) {
    Direction& direction = directionOf(isUp(flow));
    const int priority = policy_.linkPriority(flow, i);
    const auto place =
        std::find_if(direction.queued.begin(), direction.queued.end(),
                     [&](const QueuedTensor& other) { return other.priority > priority; });
    direction.queued.insert(place, {flow, i, priority, costs_.bytes[indexOf(flow)]});
    sendNext(direction);
  }

  void sendNext(Direction& direction) {
    while (!direction.queued.empty() && !direction.choosing) {
      const double mayAt = direction.freeAt - direction.ahead;
      if (mayAt > clock_.now()) {
        direction.choosing = true;
        clock_.at(mayAt, [this, &direction] {
          direction.choosing = false;
          sendNext(direction);
        });
        return;
      }
      sendSegment(direction);
    }
  }

  void sendSegment(Direction& direction) {
    QueuedTensor& tensor = direction.queued.front();
    const double bytes = std::min(tensor.bytesLeft, direction.segment);
    tensor.bytesLeft -= bytes;
    const double begin = std::max(clock_.now(), direction.freeAt);
    direction.freeAt = begin + bytes / direction.rate;
    note(isUp(tensor.flow) ? Span::Lane::uplink : Span::Lane::downlink, flowName(tensor.flow),
         tensor.i, begin, direction.freeAt);
    if (tensor.bytesLeft > 0) return;
    clock_.at(direction.freeAt + costs_.latency,
              [this, flow = tensor.flow, i = tensor.i] { decode(flow, i); });
    direction.queued.erase(direction.queued.begin());
  }

  const StepCosts& costs_;
  const Policy& policy_;
  const bool withTimeline_;
  VirtualClock clock_;
  SimulatedStep step_;
  std::array<Device, 2> devices_;
  std::array<double, 2> codecFreeAt_{};  // client, server; in order of arrival
  std::array<Direction, 2> directions_;
  std::uint32_t backwardsDone_ = 0;
};

// ---- Search ----

// Order of individual actions and tensors: of those ready, the one with the lowest rank goes first.
struct Order {
  std::uint32_t inFlight = 1;
  std::vector<double> actions;  // kScheduledKinds x M
  std::vector<double> tensors;  // kTensorFlows x M
};

Policy policyOf(const Order& order, std::uint32_t microBatches) {
  return {[&order, microBatches](const ReadyKinds& ready, const StageState& state) {
            std::optional<ActionKind> best;
            double least = 0;
            for (std::size_t k = 0; k < kScheduledKinds; ++k) {
              if (!ready.ready[k]) continue;
              const double rank = order.actions[k * microBatches + state.started[k]];
              if (best && rank >= least) continue;
              best = static_cast<ActionKind>(k);
              least = rank;
            }
            return best;
          },
          [&order, microBatches](Flow flow, std::uint32_t i) {
            return static_cast<int>(order.tensors[indexOf(flow) * microBatches + i] * 1000);
          },
          order.inFlight};
}

// Gives every micro-batch of a kind or a flow the same rank.
Order orderOf(const std::array<int, kScheduledKinds>& kinds,
              const std::array<int, kTensorFlows>& flows, std::uint32_t microBatches,
              std::uint32_t inFlight) {
  Order order{inFlight, {}, {}};
  for (const int rank : kinds) order.actions.insert(order.actions.end(), microBatches, rank);
  for (const int rank : flows) order.tensors.insert(order.tensors.end(), microBatches, rank);
  return order;
}

}  // namespace

Policy policyOf(const Schedule& schedule, std::uint32_t inFlight) {
  return {schedule.pick,
          [priority = schedule.linkPriority](Flow flow, std::uint32_t) { return priority(flow); },
          inFlight};
}

SimulatedStep simulateStep(const StepCosts& costs, const Policy& policy, bool withTimeline) {
  return Simulation(costs, policy, withTimeline).run();
}

double bestStepSeconds(const StepCosts& costs, std::uint32_t tries) {
  const std::uint32_t m = costs.microBatches;
  const auto secondsOf = [&](const Order& order) {
    return simulateStep(costs, policyOf(order, m)).seconds;
  };
  Order best;
  double least = 0;
  const auto consider = [&](Order order) {
    const double seconds = secondsOf(order);
    if (!best.actions.empty() && seconds >= least) return;
    best = std::move(order);
    least = seconds;
  };
  std::array<int, 3> client = {0, 1, 2};  // ranks of HeadForward, TailStep, HeadBackward
  do {
    for (const int server : {0, 1}) {
      for (const int up : {0, 1, 2}) {
        for (const int down : {0, 1, 2}) {
          // 0: the activation first; 1: the gradient first; 2: first come, first served
          std::array<int, kTensorFlows> flows{};
          flows[indexOf(Flow::activation0)] = up == 1 ? 1 : 0;
          flows[indexOf(Flow::gradient1)] = up == 0 ? 1 : 0;
          flows[indexOf(Flow::activation1)] = down == 1 ? 1 : 0;
          flows[indexOf(Flow::gradient0)] = down == 0 ? 1 : 0;
          std::array<int, kScheduledKinds> kinds{};
          for (std::size_t k = 0; k < kClientKinds.size(); ++k)
            kinds[indexOf(kClientKinds[k])] = client[k];
          kinds[indexOf(ActionKind::bodyForward)] = server;
          kinds[indexOf(ActionKind::bodyBackward)] = 1 - server;
          for (std::uint32_t w = 1; w <= m; ++w) consider(orderOf(kinds, flows, m, w));
        }
      }
    }
  } while (std::next_permutation(client.begin(), client.end()));

  const RandomKey key = randomKey(1, "simulator.search");
  std::uint64_t draw = 0;
  const auto uniform = [&] { return static_cast<double>(randomBits(key, draw++) >> 11) * 0x1p-53; };
  for (std::uint32_t k = 0; k < tries; ++k) {
    Order changed = best;
    // Redraws a few ranks, within the range of the kinds' ranks and beyond it.
    for (std::uint64_t changes = 1 + randomBits(key, draw++) % 3; changes > 0; --changes) {
      std::vector<double>& ranks = uniform() < 0.5 ? changed.actions : changed.tensors;
      ranks[randomBits(key, draw++) % ranks.size()] = uniform() * 4 - 1;
    }
    consider(std::move(changed));
  }
  return least;
}

}  // namespace cleave
