#include "common/predict/simulator.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>

#include "common/core/random.h"
#include "common/engine/virtual_clock.h"
#include "common/net/frames/frame.h"
#include "common/topology/step.h"

namespace cleave {
namespace {

struct QueuedTensor {
  Flow flow;
  std::uint32_t i;
  int priority;
  double bytesLeft;
};

// The state of the client or of a server.
struct Side {
  Side(StageRows rows, const Policy& policy, std::uint32_t inFlight, bool overlapsSteps,
       const Share& computed)
      : stage(std::move(rows), policy.pick, inFlight, overlapsSteps), share(computed) {
    stage.begin(Phase::train, share.count);
  }

  bool isClient = true;
  std::size_t server = 0;
  std::size_t body = 0;
  StageEngine stage;
  Share share;  // the micro-batches of each step that it computes
  bool busy = false;
  double codecFreeAt = 0;
  double doneAt = 0;  // when its latest action was done
  // Numbers of steps. A step begins at a server when its first tensor arrives.
  std::uint32_t begun = 1;
  std::uint32_t reported = 0;        // sent by a server
  std::uint32_t reportsArrived = 0;  // of a server, at the client
};

// One direction of a link: between the client and a server, or between the servers of two
// neighbouring bodies.
struct Direction {
  Span::Lane lane = Span::Lane::uplink;
  std::size_t server = 0;  // see Span
  Side* to = nullptr;      // the receiving side
  std::size_t line = 0;    // index of the line whose bandwidth it uses
  double rate = 0;
  double latency = 0;
  double segment = 0;  // bytes
  double ahead = 0;    // remaining seconds of chosen data when the next segment is chosen
  std::vector<QueuedTensor> queued = {};  // by priority, then by arrival
  bool choosing = false;                  // sendNext() is scheduled on the clock
  double freeAt = 0;                      // when all its chosen segments have crossed
};

class Simulation {
 public:
  Simulation(const StepCosts& costs, const Policy& policy, bool withTimeline,
             std::uint32_t staleness = 0)
      : costs_(costs),
        policy_(policy),
        withTimeline_(withTimeline),
        staleness_(staleness),
        client_(clientRows(costs.places()), policy, policy.inFlight, staleness > 0,
                {0, 1, costs.microBatches}) {
    for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
      for (std::uint32_t rank = 0; rank < costs.bodies[b].replicas.count; ++rank) {
        addServer(b, rank);
      }
    }
    summedAt_.assign(costs.bodies.size(), 0);
    for (const auto& server : servers_) {
      const std::size_t s = server->server;
      const BodyCosts& body = costs.bodies[server->body];
      // With a shared bandwidth, all links use the lines of the first one.
      const std::size_t line = costs.sharesLink ? 0 : 2 * s;
      addDirection(Span::Lane::uplink, s, *server, line, body.rateUp, body.latency,
                   body.queueBytes);
      addDirection(Span::Lane::downlink, s, client_, line + 1, body.rateDown, body.latency,
                   body.queueBytes);
    }
    for (std::size_t e = 0; e < costs.edges.size(); ++e) {
      const EdgeCosts& edge = costs.edges[e];
      for (const bool forward : {true, false}) {
        addDirection(forward ? Span::Lane::edgeForward : Span::Lane::edgeBackward, e + 1,
                     *servers_[forward ? e + 1 : e], directions_.size(), edge.rate, edge.latency,
                     0);
      }
    }
    lineFreeAt_.assign(directions_.size(), 0);
  }

  // The ends of `steps` consecutive steps.
  std::vector<double> run(std::uint32_t steps) {
    steps_ = steps;
    while (client_.begun < std::min(steps, staleness_ + 1)) append(client_);
    startWork(client_);
    while (clock_.runNext()) {
    }
    if (ends_.size() != steps) throw std::logic_error("the simulated run has stalled");
    return std::move(ends_);
  }

  SimulatedStep run() {
    startWork(client_);
    while (clock_.runNext()) {
    }
    if (!client_.stage.isDone()) throw std::logic_error("the simulated step has stalled");
    double end = client_.doneAt;
    for (const auto& server : servers_) {
      const BodyCosts& body = costs_.bodies[server->body];
      end = std::max(end, server->doneAt + body.replicas.seconds + body.latency);
    }
    step_.seconds = end + costs_.updateSeconds;
    return std::move(step_);
  }

 private:
  void addServer(std::size_t body, std::uint32_t rank) {
    const std::uint32_t count = costs_.bodies[body].replicas.count;
    const Replica replica{rank, count};
    const Share share = replica.shareOf({0, 1, costs_.microBatches});
    Side& server = *servers_.emplace_back(std::make_unique<Side>(
        bodyRows(costs_.bodies[body].place, static_cast<std::uint32_t>(costs_.bodies.size()),
                 policy_.splitsBackward),
        policy_, inFlightOf(policy_.inFlight, count, share.count, staleness_), staleness_ > 0,
        share));
    server.isClient = false;
    server.server = servers_.size() - 1;
    server.body = body;
  }
  void addDirection(Span::Lane lane, std::size_t server, Side& to, std::size_t line, double rate,
                    double latency, double queueBytes) {
    Direction direction{lane, server, &to, line, rate, latency};
    direction.segment = static_cast<double>(segmentBytesFor(rate));
    // A connection chooses its next segment when less than half a segment is unsent
    // (FrameStream::readyToWrite).
    direction.ahead = (direction.segment / 2 + queueBytes) / rate;
    directions_.push_back(std::move(direction));
  }
  Direction& uplinkOf(std::size_t server) { return directions_[2 * server]; }
  Direction& downlinkOf(std::size_t server) { return directions_[2 * server + 1]; }
  // Of the direct link between two neighbouring bodies.
  Direction& edgeFrom(std::size_t body, bool forward) {
    const std::size_t edge = forward ? body : body - 1;
    return directions_[2 * (servers_.size() + edge) + (forward ? 0 : 1)];
  }

  void note(Span::Lane lane, std::size_t server, std::string_view what, std::uint32_t i,
            double begin, double end) {
    if (!withTimeline_ || end == begin) return;
    step_.timeline.push_back(
        {lane, server, std::string(what) + " " + std::to_string(i), begin, end});
  }

  // ---- Micro-batches of a replica ----

  // Stages count the micro-batches of all steps as one sequence. Converts a number in the
  // sequence of all micro-batches to that in the sequence of those that the replica computes.
  std::uint32_t toOwn(const Side& side, std::uint32_t i) const {
    const std::uint32_t m = costs_.microBatches;
    return i / m * side.share.count + side.share.position(i % m);
  }
  std::uint32_t fromOwn(const Side& side, std::uint32_t own) const {
    return own / side.share.count * costs_.microBatches + side.share.at(own % side.share.count);
  }

  // ---- Several steps ----

  static void append(Side& side) {
    side.stage.append(side.share.count);
    ++side.begun;
  }

  // Sends a server's report on a step if all of its actions are done, and with replicas, if those
  // of the other replicas are done and the sum is made.
  void reportIfDone(Side& server) {
    if (server.reported == server.begun ||
        !server.stage.isDone((server.reported + 1) * server.share.count)) {
      return;
    }
    ++server.reported;
    const ReplicaCosts& replicas = costs_.bodies[server.body].replicas;
    if (replicas.count == 1) return sendReport(server, clock_.now());
    for (const auto& other : servers_) {
      if (other->body == server.body && other->reported < server.reported) return;
    }
    double& summedAt = summedAt_[server.body];
    summedAt = std::max(summedAt, clock_.now()) + replicas.seconds;
    for (const auto& other : servers_) {
      if (other->body == server.body) sendReport(*other, summedAt);
    }
  }

  void sendReport(Side& server, double at) {
    clock_.at(at + costs_.bodies[server.body].latency, [this, &server] {
      ++server.reportsArrived;
      updateIfReported();
    });
  }

  // Decides the oldest step and applies its update, if it is done and all servers have reported.
  void updateIfReported() {
    const auto updated = static_cast<std::uint32_t>(ends_.size());
    if (client_.busy || updated == client_.begun ||
        !client_.stage.isDone((updated + 1) * costs_.microBatches)) {
      return;
    }
    for (const auto& server : servers_) {
      if (server->reportsArrived == updated) return;
    }
    client_.busy = true;
    clock_.at(clock_.now() + costs_.updateSeconds, [this] {
      client_.busy = false;
      ends_.push_back(clock_.now());
      passOn();
      if (client_.begun < steps_) append(client_);
      updateIfReported();
      startWork(client_);
    });
  }

  // ---- Devices ----

  void startWork(Side& side) {
    if (side.busy) return;
    const auto action = side.stage.next();
    if (!action) return;
    const ActionKind kind = action->kind;
    const std::uint32_t i = fromOwn(side, action->i);
    const double end = clock_.now() + secondsOf(side, kind);
    note(side.isClient ? Span::Lane::client : Span::Lane::server, side.server, actionName(kind), i,
         clock_.now(), end);
    side.busy = true;
    clock_.at(end, [this, &side, kind, i] { finishWork(side, kind, i); });
  }

  double secondsOf(const Side& side, ActionKind kind) const {
    const double seconds = costs_.of(kind, side.body);
    const bool isSplit =
        kind == ActionKind::bodyBackward && side.stage.has(ActionKind::bodyWeights);
    return isSplit ? seconds - costs_.of(ActionKind::bodyWeights, side.body) : seconds;
  }

  void finishWork(Side& side, ActionKind kind, std::uint32_t i) {
    side.busy = false;
    side.doneAt = clock_.now();
    side.stage.completed(kind);
    for (const Flow flow : side.stage.outputsOf(kind)) encode(side, flow, i);
    if (side.isClient) passOn();
    if (steps_ > 0) side.isClient ? updateIfReported() : reportIfDone(side);
    startWork(side);
  }

  // ---- Codecs ----

  // Returns the time at which it is done.
  double runCodec(Side& side, const char* what, Flow flow, std::uint32_t i, double seconds) {
    if (seconds == 0) return clock_.now();
    const double begin = std::max(clock_.now(), side.codecFreeAt);
    side.codecFreeAt = begin + seconds;
    if (withTimeline_) {
      note(side.isClient ? Span::Lane::clientCodec : Span::Lane::serverCodec, side.server,
           what + flowName(flow), i, begin, side.codecFreeAt);
    }
    return side.codecFreeAt;
  }

  void encode(Side& side, Flow flow, std::uint32_t i) {
    const double done = runCodec(side, "encode ", flow, i, costs_.flows.at(flow).encodeSeconds);
    clock_.at(done, [this, &side, flow, i] {
      if (side.isClient) return sendUp(flow, i);
      const bool isForClient = costs_.edges.empty() || client_.stage.isInput(flow);
      queue(isForClient ? downlinkOf(side.server) : edgeFrom(side.body, isActivation(flow)), flow,
            i);
    });
  }

  void decode(Side& side, Flow flow, std::uint32_t i) {
    const double done = runCodec(side, "decode ", flow, i, costs_.flows.at(flow).decodeSeconds);
    clock_.at(done, [this, &side, flow, i] {
      const std::uint32_t own = toOwn(side, i);
      while (own >= side.begun * side.share.count) append(side);
      side.stage.arrived(flow, own);
      startWork(side);
    });
  }

  // ---- Links ----

  // Sends to the body that receives the flow, or to the replica that computes the micro-batch.
  void sendUp(Flow flow, std::uint32_t i) {
    for (const auto& server : servers_) {
      const bool isIts = server->share.has(i % costs_.microBatches);
      if (isIts && server->stage.isInput(flow)) return queue(uplinkOf(server->server), flow, i);
    }
  }

  // Call when the client's device is free: sends the tensors that it had to keep.
  void passOn() {
    for (const auto& [flow, i] : std::exchange(toPassOn_, {})) sendUp(flow, i);
  }

  // Call when a tensor has crossed a direction.
  void arrive(const Direction& direction, Flow flow, std::uint32_t i) {
    if (direction.to->stage.isInput(flow)) return decode(*direction.to, flow, i);
    if (client_.busy) {
      toPassOn_.emplace_back(flow, i);
    } else {
      sendUp(flow, i);
    }
  }

  void queue(Direction& direction, Flow flow, std::uint32_t i) {
    const Place& place = costs_.bodies[servers_[direction.server]->body].place;
    const int priority = policy_.linkPriority(flow, i, place);
    const auto next =
        std::find_if(direction.queued.begin(), direction.queued.end(),
                     [&](const QueuedTensor& other) { return other.priority > priority; });
    direction.queued.insert(next, {flow, i, priority, costs_.flows.at(flow).bytes});
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
    const double begin = std::max(clock_.now(), lineFreeAt_[direction.line]);
    lineFreeAt_[direction.line] = direction.freeAt = begin + bytes / direction.rate;
    if (withTimeline_) {
      note(direction.lane, direction.server, flowName(tensor.flow), tensor.i, begin,
           direction.freeAt);
    }
    if (tensor.bytesLeft > 0) return;
    clock_.at(direction.freeAt + direction.latency,
              [this, &direction, flow = tensor.flow, i = tensor.i] { arrive(direction, flow, i); });
    direction.queued.erase(direction.queued.begin());
  }

  const StepCosts& costs_;
  const Policy& policy_;
  const bool withTimeline_;
  const std::uint32_t staleness_;
  VirtualClock clock_;
  SimulatedStep step_;
  std::uint32_t steps_ = 0;   // 0: one step alone
  std::vector<double> ends_;  // of the steps whose updates are done
  Side client_;
  std::vector<std::unique_ptr<Side>> servers_;
  std::vector<double> summedAt_;  // by body: when the latest sum of its replicas is made
  // Up and down of each server, then forward and backward of each edge. Addresses do not change.
  std::deque<Direction> directions_;
  std::vector<double> lineFreeAt_;  // when all segments chosen for a line have crossed
  std::vector<std::pair<Flow, std::uint32_t>> toPassOn_;  // by the client, after its action
};

// ---- Search ----

// Order of individual actions and tensors: of the ready ones, the one with the lowest rank is the
// next.
struct Order {
  std::uint32_t inFlight = 1;
  bool splitsBackward = false;
  std::vector<double> actions;           // kScheduledKinds x M
  FlowMap<std::vector<double>> tensors;  // M each
};

Policy policyOf(const Order& order, std::uint32_t microBatches) {
  return {[&order, microBatches](const ReadyKinds& ready, const StageState& state) {
            std::optional<ActionKind> best;
            double lowest = 0;
            for (std::size_t k = 0; k < kScheduledKinds; ++k) {
              if (!ready.ready[k]) continue;
              const double rank = order.actions[k * microBatches + state.started[k]];
              if (best && rank >= lowest) continue;
              best = static_cast<ActionKind>(k);
              lowest = rank;
            }
            return best;
          },
          [&order](Flow flow, std::uint32_t i, const Place&) {
            return static_cast<int>(order.tensors.at(flow)[i] * 1000);
          },
          order.inFlight, order.splitsBackward};
}

using KindRanks = std::array<int, kScheduledKinds>;

// Which of a direction's tensors are sent first: activations, gradients, or the first one queued.
enum class First : std::uint8_t { activations, gradients, any };

int rankOf(Flow flow, First first) {
  if (first == First::any) return 0;
  return isActivation(flow) == (first == First::activations) ? 0 : 1;
}

// Gives every micro-batch of a kind or a flow the same rank.
Order orderOf(const StepCosts& costs, const KindRanks& kinds, First up, First down,
              std::uint32_t inFlight, bool splitsBackward) {
  Order order{inFlight, splitsBackward, {}, {}};
  for (const int rank : kinds) order.actions.insert(order.actions.end(), costs.microBatches, rank);
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) {
      order.tensors[flow].assign(costs.microBatches,
                                 rankOf(flow, body.place.isUp(flow) ? up : down));
    }
  }
  return order;
}

// All orders of each side's kinds of actions.
std::vector<KindRanks> allKindRanks() {
  std::vector<KindRanks> all;
  std::array<int, 3> client = {0, 1, 2};
  do {
    for (const int server : {0, 1}) {
      KindRanks ranks{};
      ranks[indexOf(ActionKind::headForward)] = client[0];
      ranks[indexOf(ActionKind::tailStep)] = client[1];
      ranks[indexOf(ActionKind::headBackward)] = client[2];
      ranks[indexOf(ActionKind::bodyForward)] = server;
      ranks[indexOf(ActionKind::bodyBackward)] = 1 - server;
      ranks[indexOf(ActionKind::bodyWeights)] = 2;
      all.push_back(ranks);
    }
  } while (std::next_permutation(client.begin(), client.end()));
  return all;
}

}  // namespace

Policy policyOf(const Schedule& schedule, std::uint32_t inFlight) {
  return {schedule.pick,
          [priority = schedule.linkPriority](Flow flow, std::uint32_t, const Place& body) {
            return priority(flow, body);
          },
          inFlight, schedule.splitsBackward};
}

SimulatedStep simulateStep(const StepCosts& costs, const Policy& policy, bool withTimeline) {
  return Simulation(costs, policy, withTimeline).run();
}

double steadyStepSeconds(const StepCosts& costs, const Policy& policy, std::uint32_t staleness) {
  if (staleness == 0) return simulateStep(costs, policy).seconds;
  // The pipeline fills in the first steps and drains in the last ones.
  const std::uint32_t window = staleness + 1;
  const std::uint32_t measured = 8 * window;
  const std::vector<double> ends =
      Simulation(costs, policy, false, staleness).run(6 * window + measured);
  const std::size_t first = std::size_t{4} * window - 1;
  return (ends[first + measured] - ends[first]) / measured;
}

double bestStepSeconds(const StepCosts& costs, std::uint32_t tries) {
  const std::uint32_t m = costs.microBatches;
  Order best;
  double shortest = 0;
  const auto consider = [&](Order order) {
    const double seconds = simulateStep(costs, policyOf(order, m)).seconds;
    if (!best.actions.empty() && seconds >= shortest) return;
    best = std::move(order);
    shortest = seconds;
  };
  constexpr std::array kFirst = {First::activations, First::gradients, First::any};
  for (const KindRanks& kinds : allKindRanks()) {
    for (const First up : kFirst) {
      for (const First down : kFirst) {
        for (std::uint32_t w = 1; w <= m; ++w) {
          consider(orderOf(costs, kinds, up, down, w, false));
          if (w == m && costs.hasWeights()) consider(orderOf(costs, kinds, up, down, w, true));
        }
      }
    }
  }

  const RandomKey key = randomKey(1, "simulator.search");
  std::uint64_t draw = 0;
  const auto uniform = [&] { return static_cast<double>(randomBits(key, draw++) >> 11) * 0x1p-53; };
  for (std::uint32_t k = 0; k < tries; ++k) {
    Order changed = best;
    // Draws a few ranks again, from a range somewhat larger than that of the kinds' ranks.
    for (std::uint64_t changes = 1 + randomBits(key, draw++) % 3; changes > 0; --changes) {
      std::vector<double>* ranks = &changed.actions;
      if (uniform() >= 0.5) {
        const auto chosen =
            static_cast<std::ptrdiff_t>(randomBits(key, draw++) % changed.tensors.size());
        ranks = &(changed.tensors.begin() + chosen)->second;
      }
      (*ranks)[randomBits(key, draw++) % ranks->size()] = uniform() * 4 - 1;
    }
    consider(std::move(changed));
  }
  return shortest;
}

}  // namespace cleave
