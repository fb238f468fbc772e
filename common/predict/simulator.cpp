#include "common/predict/simulator.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <deque>
#include <memory>
#include <optional>
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
  // `computed`: see `shares`.
  Side(const StageRows& rows, const Policy& policy, std::uint32_t inFlight, bool overlapsSteps,
       std::vector<Share> computed)
      : shares(std::move(computed)) {
    for (const Share& share : shares) {
      StageEngine& lane = lanes.emplace_back(rows, policy.pick, inFlight, overlapsSteps);
      lane.begin(Phase::train, share.count);
    }
  }

  bool isInput(Flow flow) const { return lanes.front().isInput(flow); }
  bool isDone() const {
    return std::ranges::all_of(lanes, [](const auto& l) { return l.isDone(); });
  }
  // Whether all actions of these first steps are done.
  bool isDone(std::uint32_t steps) const {
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      if (!lanes[l].isDone(steps * shares[l].count)) return false;
    }
    return true;
  }
  // The lane of a micro-batch of the step; nullopt: it is not computed here.
  std::optional<std::size_t> laneOf(std::uint32_t i) const {
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      if (shares[l].has(i)) return l;
    }
    return std::nullopt;
  }

  bool isClient = true;
  std::size_t member = 0;  // of a client
  std::size_t server = 0;
  std::size_t body = 0;
  std::deque<StageEngine> lanes;  // of a server, one per member, or one
  std::vector<Share> shares;      // by lane: the micro-batches of each step that it computes
  bool busy = false;
  double codecFreeAt = 0;
  double doneAt = 0;  // when its latest action was done
  // Numbers of steps. A step begins at a server when its first tensor arrives.
  std::uint32_t begun = 1;
  std::uint32_t reported = 0;        // sent by a server
  std::uint32_t reportsArrived = 0;  // of a server, at the client
  // Of a client: tensors that it passes on after its current action.
  std::vector<std::pair<Flow, std::uint32_t>> toPassOn = {};
};

// One direction of a link: between the client and a server, or between the servers of two
// neighbouring bodies.
struct Direction {
  Span::Lane lane = Span::Lane::uplink;
  std::size_t server = 0;  // see Span
  Side* to = nullptr;      // the receiving side
  Side* client = nullptr;  // at one end; null: none
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
  Simulation(const StepCosts& costs, const Policy& policy, Division division,
             std::uint32_t unit = 1, bool withTimeline = false, std::uint32_t staleness = 0)
      : costs_(costs),
        policy_(policy),
        division_(std::move(division)),
        unit_(unit),
        withTimeline_(withTimeline),
        staleness_(staleness) {
    assert(costs.members == 1 || (costs.edges.empty() && staleness == 0));
    for (std::uint32_t m = 0; m < costs.members; ++m) {
      shares_.push_back(division_.shareOfMember(m));
      const StageRows rows = clientRows(costs.places());
      const std::vector<Share> own = {shares_.back()};
      clients_.emplace_back(rows, policy, policy.inFlight, staleness > 0, own).member = m;
    }
    for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
      for (std::uint32_t rank = 0; rank < costs.bodies[b].replicas.count; ++rank) {
        addServer(b, rank);
      }
    }
    summedAt_.assign(costs.bodies.size(), 0);
    for (Side& client : clients_) {
      const std::size_t first = directions_.size();
      for (const auto& server : servers_) {
        const BodyCosts& body = costs.bodies[server->body];
        // With a shared bandwidth, all links of a client use the lines of the first one.
        const std::size_t line = costs.sharesLink ? first : directions_.size();
        const auto add = [&](Span::Lane lane, Side& to, std::size_t of, double rate) {
          addDirection(lane, server->server, to, of, rate, body.latency, body.queueBytes);
          directions_.back().client = &client;
        };
        add(Span::Lane::uplink, *server, line, body.rateUp);
        add(Span::Lane::downlink, client, line + 1, body.rateDown);
      }
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
    Side& client = clients_.front();
    while (client.begun < std::min(steps, staleness_ + 1)) append(client);
    startWork(client);
    while (clock_.runNext()) {
    }
    if (ends_.size() != steps) throw std::logic_error("the simulated run has stalled");
    return std::move(ends_);
  }

  SimulatedStep run() {
    const BodyCosts& first = costs_.bodies.front();
    for (Side& client : clients_) {
      clock_.at(client.member == 0 ? 0 : 2 * first.latency, [this, &client] { startWork(client); });
    }
    while (clock_.runNext()) {
    }
    double end = 0;
    for (const Side& client : clients_) {
      if (!client.isDone()) throw std::logic_error("the simulated step has stalled");
      end = std::max(end, client.doneAt);
    }
    if (costs_.members > 1) {
      end += costs_.memberBytes / first.rateUp + costs_.memberBytes / first.rateDown +
             2 * first.latency;
    }
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
    const Share all = replica.shareOf(division_.all());
    std::vector<Share> shares = {all};
    if (costs_.isByMember) {
      shares.clear();
      for (const Share& ofMember : shares_) shares.push_back(replica.shareOf(ofMember));
    }
    Side& server = *servers_.emplace_back(std::make_unique<Side>(
        bodyRows(costs_.bodies[body].place, static_cast<std::uint32_t>(costs_.bodies.size()),
                 policy_.splitsBackward),
        policy_, inFlightOf(policy_.inFlight, count, all.count, staleness_), staleness_ > 0,
        std::move(shares)));
    server.isClient = false;
    server.server = servers_.size() - 1;
    server.body = body;
  }
  void addDirection(Span::Lane lane, std::size_t server, Side& to, std::size_t line, double rate,
                    double latency, double queueBytes) {
    Direction direction{lane, server, &to, nullptr, line, rate, latency};
    direction.segment = static_cast<double>(segmentBytesFor(rate));
    // A connection chooses its next segment when less than half a segment is unsent
    // (FrameStream::readyToWrite).
    direction.ahead = (direction.segment / 2 + queueBytes) / rate;
    directions_.push_back(std::move(direction));
  }
  Direction& uplinkOf(const Side& client, std::size_t server) {
    return directions_[2 * (client.member * servers_.size() + server)];
  }
  Direction& downlinkOf(const Side& client, std::size_t server) {
    return directions_[2 * (client.member * servers_.size() + server) + 1];
  }
  // The client whose micro-batch it is.
  Side& clientOf(std::uint32_t i) {
    for (Side& client : clients_) {
      if (client.shares.front().has(i % division_.count)) return client;
    }
    throw std::logic_error("no client has this micro-batch");
  }
  // Of the direct link between two neighbouring bodies.
  Direction& edgeFrom(std::size_t body, bool forward) {
    const std::size_t edge = forward ? body : body - 1;
    return directions_[2 * (servers_.size() + edge) + (forward ? 0 : 1)];
  }

  void note(Span::Lane lane, const Side* client, std::size_t server, std::string_view what,
            std::uint32_t i, double begin, double end) {
    if (!withTimeline_ || end == begin) return;
    step_.timeline.push_back({lane, server, client == nullptr ? 0 : client->member,
                              std::string(what) + " " + std::to_string(i), begin, end});
  }

  // ---- Micro-batches of a share ----

  // Stages count the micro-batches of all steps as one sequence. Converts a number in the
  // sequence of all micro-batches to that in the sequence of a share.
  std::uint32_t toOwn(const Share& share, std::uint32_t i) const {
    const std::uint32_t m = division_.count;
    return i / m * share.count + share.position(i % m);
  }
  std::uint32_t fromOwn(const Share& share, std::uint32_t own) const {
    return own / share.count * division_.count + share.at(own % share.count);
  }

  // ---- Several steps ----

  static void append(Side& side) {
    for (std::size_t l = 0; l < side.lanes.size(); ++l) side.lanes[l].append(side.shares[l].count);
    ++side.begun;
  }

  // Sends a server's report on a step if all of its actions are done, and with replicas, if those
  // of the other replicas are done and the sum is made.
  void reportIfDone(Side& server) {
    if (server.reported == server.begun || !server.isDone(server.reported + 1)) return;
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
    Side& client = clients_.front();
    if (client.busy || updated == client.begun || !client.isDone(updated + 1)) return;
    for (const auto& server : servers_) {
      if (server->reportsArrived == updated) return;
    }
    client.busy = true;
    clock_.at(clock_.now() + costs_.updateSeconds, [this, &client] {
      client.busy = false;
      ends_.push_back(clock_.now());
      passOn(client);
      if (client.begun < steps_) append(client);
      updateIfReported();
      startWork(client);
    });
  }

  // ---- Devices ----

  void startWork(Side& side) {
    if (side.busy) return;
    const auto lane = nextOf(side.lanes);
    if (!lane) return;
    const StageEngine::Action action = *side.lanes[*lane].next();
    const ActionKind kind = action.kind;
    const std::uint32_t i = fromOwn(side.shares[*lane], action.i);
    const double end = clock_.now() + sizeOf(i) * secondsOf(side, kind);
    note(side.isClient ? Span::Lane::client : Span::Lane::server, &side, side.server,
         actionName(kind), i, clock_.now(), end);
    side.busy = true;
    clock_.at(end, [this, &side, lane = *lane, kind, i] { finishWork(side, lane, kind, i); });
  }

  // The size of a micro-batch, relative to that of the one that has the costs.
  double sizeOf(std::uint32_t i) const {
    return static_cast<double>(division_.size(i % division_.count)) / unit_;
  }

  double secondsOf(const Side& side, ActionKind kind) const {
    const double seconds = costs_.of(kind, side.body);
    const bool isSplit =
        kind == ActionKind::bodyBackward && side.lanes.front().has(ActionKind::bodyWeights);
    return isSplit ? seconds - costs_.of(ActionKind::bodyWeights, side.body) : seconds;
  }

  void finishWork(Side& side, std::size_t lane, ActionKind kind, std::uint32_t i) {
    side.busy = false;
    side.doneAt = clock_.now();
    side.lanes[lane].completed(kind);
    for (const Flow flow : side.lanes[lane].outputsOf(kind)) encode(side, flow, i);
    if (side.isClient) passOn(side);
    if (steps_ > 0) side.isClient ? updateIfReported() : reportIfDone(side);
    startWork(side);
  }

  // ---- Codecs ----

  // Returns the time at which it is done.
  double runCodec(Side& side, const char* what, Flow flow, std::uint32_t i, double seconds) {
    if (seconds == 0) return clock_.now();
    const double begin = std::max(clock_.now(), side.codecFreeAt);
    side.codecFreeAt = begin + sizeOf(i) * seconds;
    if (withTimeline_) {
      note(side.isClient ? Span::Lane::clientCodec : Span::Lane::serverCodec, &side, side.server,
           what + flowName(flow), i, begin, side.codecFreeAt);
    }
    return side.codecFreeAt;
  }

  void encode(Side& side, Flow flow, std::uint32_t i) {
    const double done = runCodec(side, "encode ", flow, i, costs_.flows.at(flow).encodeSeconds);
    clock_.at(done, [this, &side, flow, i] {
      if (side.isClient) return sendUp(side, flow, i);
      Side& client = clientOf(i);
      const bool isForClient = costs_.edges.empty() || client.isInput(flow);
      queue(isForClient ? downlinkOf(client, side.server) : edgeFrom(side.body, isActivation(flow)),
            flow, i);
    });
  }

  void decode(Side& side, Flow flow, std::uint32_t i) {
    const double done = runCodec(side, "decode ", flow, i, costs_.flows.at(flow).decodeSeconds);
    clock_.at(done, [this, &side, flow, i] {
      const std::size_t lane = *side.laneOf(i % division_.count);
      const std::uint32_t own = toOwn(side.shares[lane], i);
      while (own >= side.begun * side.shares[lane].count) append(side);
      side.lanes[lane].arrived(flow, own);
      startWork(side);
    });
  }

  // ---- Links ----

  // Sends to the body that receives the flow, or to the replica that computes the micro-batch.
  void sendUp(const Side& client, Flow flow, std::uint32_t i) {
    for (const auto& server : servers_) {
      if (!server->laneOf(i % division_.count) || !server->isInput(flow)) continue;
      return queue(uplinkOf(client, server->server), flow, i);
    }
  }

  // Call when the client's device is free: sends the tensors that it had to keep.
  void passOn(Side& client) {
    for (const auto& [flow, i] : std::exchange(client.toPassOn, {})) sendUp(client, flow, i);
  }

  // Call when a tensor has crossed a direction.
  void arrive(const Direction& direction, Flow flow, std::uint32_t i) {
    if (direction.to->isInput(flow)) return decode(*direction.to, flow, i);
    Side& client = *direction.client;
    if (client.busy) {
      client.toPassOn.emplace_back(flow, i);
    } else {
      sendUp(client, flow, i);
    }
  }

  void queue(Direction& direction, Flow flow, std::uint32_t i) {
    const Place& place = costs_.bodies[servers_[direction.server]->body].place;
    const int priority = policy_.linkPriority(flow, i, place);
    const auto next =
        std::find_if(direction.queued.begin(), direction.queued.end(),
                     [&](const QueuedTensor& other) { return other.priority > priority; });
    direction.queued.insert(next, {flow, i, priority, sizeOf(i) * costs_.flows.at(flow).bytes});
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
      note(direction.lane, direction.client, direction.server, flowName(tensor.flow), tensor.i,
           begin, direction.freeAt);
    }
    if (tensor.bytesLeft > 0) return;
    clock_.at(direction.freeAt + direction.latency,
              [this, &direction, flow = tensor.flow, i = tensor.i] { arrive(direction, flow, i); });
    direction.queued.erase(direction.queued.begin());
  }

  const StepCosts& costs_;
  const Policy& policy_;
  const Division division_;
  const std::uint32_t unit_;  // samples of the micro-batch that has the costs
  const bool withTimeline_;
  const std::uint32_t staleness_;
  VirtualClock clock_;
  SimulatedStep step_;
  std::uint32_t steps_ = 0;    // 0: one step alone
  std::vector<double> ends_;   // of the steps whose updates are done
  std::vector<Share> shares_;  // of the members
  std::deque<Side> clients_;   // the members of a cohort, or one
  std::vector<std::unique_ptr<Side>> servers_;
  std::vector<double> summedAt_;  // by body: when the latest sum of its replicas is made
  // Per client, up and down of each server; then forward and backward of each edge. Addresses do
  // not change.
  std::deque<Direction> directions_;
  std::vector<double> lineFreeAt_;  // when all segments chosen for a line have crossed
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
  if (costs.members == 1 || costs.batch == 0 || withTimeline) {
    return Simulation(costs, policy, costs.division(), 1, withTimeline).run();
  }
  constexpr std::uint32_t kDivisions = 16;
  SimulatedStep mean;
  for (std::uint32_t draw = 0; draw < kDivisions; ++draw) {
    mean.seconds +=
        Simulation(costs, policy, costs.division(draw), costs.samples).run().seconds / kDivisions;
  }
  return mean;
}

double steadyStepSeconds(const StepCosts& costs, const Policy& policy, std::uint32_t staleness) {
  if (staleness == 0) return simulateStep(costs, policy).seconds;
  // The pipeline fills in the first steps and drains in the last ones.
  const std::uint32_t window = staleness + 1;
  const std::uint32_t measured = 8 * window;
  const std::vector<double> ends =
      Simulation(costs, policy, costs.division(), 1, false, staleness).run(6 * window + measured);
  const std::size_t first = std::size_t{4} * window - 1;
  return (ends[first + measured] - ends[first]) / measured;
}

double bestStepSeconds(const StepCosts& costs, std::uint32_t tries) {
  const std::uint32_t m = costs.microBatches;
  Order best;
  double shortest = 0;
  const auto consider = [&](Order order) {
    const double seconds = Simulation(costs, policyOf(order, m), costs.division()).run().seconds;
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
