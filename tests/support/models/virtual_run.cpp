#include "tests/support/models/virtual_run.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <utility>

namespace cleave::test {
namespace {

TensorMessage copyTensor(const TensorMessage& message) {
  TensorMessage copy;
  copy.flow = message.flow;
  copy.at = message.at;
  copy.weightVersion = message.weightVersion;
  copy.payload = Payload(message.payload.view(), message.payload.owner());
  return copy;
}

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::headForward:
    case ActionKind::bodyForward:
      return 'F';
    case ActionKind::tailStep:
      return 'T';
    case ActionKind::headBackward:
      return 'H';
    case ActionKind::bodyWeights:
      return 'W';
    default:
      return 'B';
  }
}

SharedBytes bytesOf(const std::vector<float>& values) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  return std::make_shared<const std::vector<std::byte>>(data, data + sizeof(float) * values.size());
}

std::vector<float> floatsOf(const Blob& blob) {
  std::vector<float> values(blob.bytes.size() / sizeof(float));
  std::memcpy(values.data(), blob.bytes.data(), blob.bytes.size());
  return values;
}

// Returns the tensors of a cut; the first one has this value.
TensorBundle bundleOf(float value, std::size_t tensors) {
  TensorBundle bundle;
  for (std::size_t t = 0; t < tensors; ++t) bundle.push_back(smallPayload(t == 0 ? value : 0));
  return bundle;
}

}  // namespace

std::vector<Place> placesInRow(std::size_t count, const CutTensors& cut) {
  std::vector<Place> places;
  for (int b = 0; b < static_cast<int>(count); ++b) places.push_back({b, b + 1, cut, cut});
  return places;
}

Message copyOf(const Message& message) {
  if (const auto* tensor = std::get_if<TensorMessage>(&message)) return copyTensor(*tensor);
  if (const auto* done = std::get_if<BodyDone>(&message)) return *done;
  if (const auto* decision = std::get_if<StepDecision>(&message)) return *decision;
  if (const auto* ok = std::get_if<StepOk>(&message)) return *ok;
  if (const auto* fetch = std::get_if<Fetch>(&message)) return *fetch;
  return std::get<Blob>(message);
}

Payload smallPayload(float value) {
  auto owner = std::make_shared<float>(value);
  const auto* data = reinterpret_cast<const std::byte*>(owner.get());
  return Payload({data, {DType::f32, {1}, MemoryOrder::contiguous}}, owner);
}

float valueOf(const Payload& payload) {
  float value = 0;
  std::memcpy(&value, payload.view().data, sizeof value);
  return value;
}

// `direction`: of everything that crosses no edge. `edges`: by cut, the direction of its tensors.
class VirtualRun::Link : public EngineLink {
 public:
  Link(VirtualRun& run, std::size_t direction, std::map<int, std::size_t> edges = {})
      : run_(run), direction_(direction), edges_(std::move(edges)) {}

  void send(Message message) override {
    if (auto* tensor = std::get_if<TensorMessage>(&message)) {
      const auto edge = edges_.find(tensor->flow.cut);
      const std::size_t direction = edge == edges_.end() ? direction_ : edge->second;
      // The links of real runs refuse a flow's tensors in another order.
      const std::pair turn{tensor->at.step, tensor->at.i};
      auto& last = last_[{tensor->at.phase, tensor->flow}];
      CHECK(last < turn);
      last = turn;
      run_.directions_[direction].waiting.push_back(std::move(*tensor));
      return run_.startSending(direction);
    }
    auto shared = std::make_shared<Message>(std::move(message));
    Direction& direction = run_.directions_[direction_];
    direction.lastControl =
        std::max(direction.lastControl, run_.clock_.now() + run_.jittered(run_.options_.latency));
    run_.clock_.at(direction.lastControl, [this, shared] { run_.deliver(direction_, *shared); });
  }
  void commit(std::uint64_t) override {}

 private:
  VirtualRun& run_;
  const std::size_t direction_;
  const std::map<int, std::size_t> edges_;
  std::map<std::pair<Phase, Flow>, std::pair<std::uint64_t, std::uint32_t>> last_;
};

Division divide(const VirtualOptions& options, std::uint64_t step, std::uint32_t samples) {
  if (options.members == 1) return Division::of(samples, options.microBatches);
  std::vector<std::uint32_t> ofMembers(options.members);
  for (std::uint32_t s = 0; s < samples; ++s) {
    ++ofMembers[randomBits(randomKey(step, "member"), s) % options.members];
  }
  return Division::ofMembers(ofMembers, 2);
}

VirtualRun::VirtualRun(const VirtualOptions& options) : options_(options) {
  std::vector<std::size_t> bodies;  // of the servers
  for (const Place& place : placesInRow(options.bodies, options.cut)) {
    const std::size_t body = bodies.empty() ? 0 : bodies.back() + 1;
    const std::uint32_t count = options.replicasOf(body);
    REQUIRE((!options.hasEdges || count == 1));
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      places_.push_back(place);
      replicas_.push_back({rank, count});
      bodies.push_back(body);
    }
  }
  for (Place& place : places_) {
    if (options.headIsFrozen && place.firstCut == 0) place.first.front().hasGradient = false;
  }
  EngineOptions engine;
  engine.schedule = options.schedule;
  engine.microBatches = options.microBatches;
  engine.inFlight = resolveInFlight(*options.schedule, options.inFlight,
                                    options.microBatches * (options.staleness + 1),
                                    static_cast<std::uint32_t>(options.bodies));
  engine.bodies = static_cast<std::uint32_t>(options.bodies);
  engine.staleness = options.staleness;
  const std::vector<TinyPart> parts = tinyParts(options.bodies);
  engine.hasEdges = options.hasEdges;
  const std::size_t members = options.members, servers = places_.size();
  sides_.resize(members + servers);
  for (std::size_t m = 0; m < members; ++m) {
    for (std::size_t s = 0; s < servers; ++s) {
      directions_.push_back({.to = m, .peer = s, .place = places_[s]});
      directions_.push_back({.to = members + s, .peer = m, .place = places_[s]});
    }
  }
  const auto downTo = [servers](std::size_t m, std::size_t s) { return 2 * (m * servers + s); };
  const std::size_t firstEdge = directions_.size();
  for (std::size_t e = 0; options.hasEdges && e + 1 < options.bodies; ++e) {
    directions_.push_back({.to = members + e, .peer = 0, .place = places_[e + 1]});
    directions_.push_back({.to = members + e + 1, .peer = 0, .place = places_[e]});
  }

  for (std::size_t s = 0; s < servers; ++s) {
    const std::size_t body = bodies[s];
    std::map<int, std::size_t> edges;
    EngineOptions own = engine;
    own.hasEdgeBefore = options.hasEdges && body > 0;
    if (own.hasEdgeBefore) edges[places_[s].firstCut] = firstEdge + 2 * (body - 1);
    if (options.hasEdges && body + 1 < options.bodies) {
      edges[places_[s].lastCut] = firstEdge + 2 * body + 1;
    }
    own.replica = replicas_[s];
    own.reduces = !own.replica.isAlone();
    own.inFlight =
        inFlightOf(engine.inFlight, own.replica.count,
                   own.replica.shareOf({0, 1, options.microBatches}).count, options.staleness);
    if (members > 1) {
      own.sumsMembers = s == 0;
      own.byMember = options.addsByMember();
      own.planned = [this](const MicroBatch& at) {
        return divide(options_, at.step, at.batch.samples);
      };
    }
    Side& side = sides_[members + s];
    side.body = body;
    side.versions[0] = {parts[body + 1].weight};
    std::vector<std::shared_ptr<EngineLink>> links;
    for (std::size_t m = 0; m < members; ++m) {
      links.push_back(std::make_shared<Link>(*this, downTo(m, s), edges));
    }
    side.engine = std::make_unique<Participant>(own, places_[s], links);
  }
  for (std::size_t m = 0; m < members; ++m) {
    std::vector<BodyPeer> peers;
    for (std::size_t s = 0; s < servers; ++s) {
      peers.push_back({places_[s], std::make_shared<Link>(*this, downTo(m, s) + 1), replicas_[s]});
    }
    if (members > 1) engine.member = static_cast<std::uint32_t>(m);
    auto client = std::make_unique<Coordinator>(engine, peers, options.stepFetch);
    clients_.push_back(client.get());
    sides_[m].engine = std::move(client);
    sides_[m].versions[0] = {parts.front().weight, parts.back().weight};
  }
  toBegin_.resize(members);
}

VirtualRun::~VirtualRun() = default;

std::string VirtualRun::takeOrder(std::size_t side) {
  std::string order = std::exchange(sides_[side].order, "");
  if (!order.empty()) order.pop_back();
  return order;
}

VirtualRun::Saved VirtualRun::save() const {
  Saved saved;
  for (const Side& side : sides_) {
    saved.engines.push_back(side.engine->state());
    saved.versions.push_back(side.versions);
    saved.outputs.push_back(side.outputs);
  }
  return saved;
}

void VirtualRun::restore(const Saved& saved) {
  for (std::size_t s = 0; s < sides_.size(); ++s) {
    sides_[s].engine->restore(saved.engines[s]);
    sides_[s].versions = saved.versions[s];
    sides_[s].outputs = saved.outputs[s];
  }
}

std::vector<float> VirtualRun::weights() const {
  std::vector<float> all = {sides_[0].weights().front()};
  float outputs = 0;
  for (std::size_t s = 0; s < sides_.size(); ++s) {
    outputs += sides_[s].outputs;
    if (!sides_[s].body) {
      CHECK(sides_[s].weights() == sides_[0].weights());
      continue;
    }
    const float weight = sides_[s].weights().front();
    if (all.size() == *sides_[s].body + 1) all.push_back(weight);
    CHECK(weight == all.back());  // of all replicas
  }
  all.push_back(sides_[0].weights().back());
  all.push_back(outputs);
  return all;
}

double VirtualRun::jittered(double seconds) {
  if (options_.jitterSeed == 0) return seconds;
  const std::uint64_t bits = randomBits(randomKey(options_.jitterSeed, "jitter"), draws_++);
  return seconds * 2 * static_cast<double>(bits >> 11) * 0x1p-53;
}

double VirtualRun::run(Phase phase, std::uint64_t step, std::uint32_t samples) {
  const double start = clock_.now();
  const MicroBatch at{phase, step, 0, divide(options_, step, samples)};
  for (std::size_t m = 0; m < clients_.size(); ++m) {
    clients_[m]->begin(at);
    startWork(m);
  }
  while (!areDone()) {
    REQUIRE(clock_.runNext());  // if nothing can run, this is a deadlock
  }
  const double end = clock_.now();
  while (clock_.runNext()) {  // messages still in flight, such as StepOk
  }
  return end - start;
}

std::vector<double> VirtualRun::train(std::uint64_t first,
                                      const std::vector<std::uint32_t>& samples) {
  const double start = clock_.now();
  ends_.clear();
  for (std::size_t m = 0; m < clients_.size(); ++m) {
    for (std::size_t n = 0; n < samples.size(); ++n) {
      toBegin_[m].push_back({Phase::train, first + n, 0, divide(options_, first + n, samples[n])});
    }
    beginSteps(m);
    startWork(m);
  }
  while (!areDone()) {
    REQUIRE(clock_.runNext());  // if nothing can run, this is a deadlock
  }
  while (clock_.runNext()) {
  }
  for (double& end : ends_) end -= start;
  return ends_;
}

void VirtualRun::beginSteps(std::size_t m) {
  std::deque<MicroBatch>& left = toBegin_[m];
  while (!left.empty() && clients_[m]->mayBegin(left.front())) {
    clients_[m]->begin(left.front());
    left.pop_front();
  }
  maxInProgress_ = std::max(maxInProgress_, clients_[m]->batchesInProgress());
}

bool VirtualRun::areDone() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const Coordinator* client) { return client->batchDone(); });
}

// ---- Actions ----

void VirtualRun::startWork(std::size_t index) {
  Side& side = sides_[index];
  if (side.busy) return;
  auto work = side.engine->next();
  if (!work) return;
  const auto kind = static_cast<std::size_t>(work->kind);
  if (kind < kScheduledKinds) side.order += letter(work->kind) + std::to_string(work->at.i) + " ";
  if (index == 0) countInFlight(*work);
  if (work->kind == ActionKind::reduce) {
    reduce(index, *work);
    return startWork(index);  // the device is free
  }
  side.busy = true;
  auto shared = std::make_shared<Work>(std::move(*work));
  const double seconds = jittered(options_.seconds[kind]);
  clock_.after(seconds, [this, index, shared, seconds] {
    Side& done = sides_[index];
    done.busy = false;
    const std::uint64_t ended = done.engine->batchesEnded();
    done.engine->complete(shared->token, perform(done, *shared), seconds);
    if (!done.body && done.engine->batchesEnded() > ended) {
      if (index == 0) ends_.push_back(clock_.now());
      beginSteps(index);
    }
    startWork(index);
  });
}

// Adds the gradients in rank order when all replicas have called it.
void VirtualRun::reduce(std::size_t index, const Work& work) {
  const std::uint64_t step = work.at.step;
  const std::size_t body = *sides_[index].body;
  const Replica& replica = replicas_[index - clients_.size()];
  const std::size_t first = index - replica.rank;
  std::vector<std::uint64_t>& tokens = reductions_[{step, body}];
  tokens.resize(replica.count);
  tokens[index - first] = work.token;
  sumMembers(sides_[index], step);
  if (std::count(tokens.begin(), tokens.end(), 0) > 0) return;
  float sum = sides_[first].gradients[step].at(0);
  for (std::size_t r = 1; r < tokens.size(); ++r) sum += sides_[first + r].gradients[step].at(0);
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    clock_.after(jittered(options_.reduceSeconds),
                 [this, s = first + r, sum, step, token = tokens[r]] {
                   sides_[s].gradients[step].at(0) = sum;
                   sides_[s].engine->complete(token, std::monostate{}, options_.reduceSeconds);
                   startWork(s);
                 });
  }
  reductions_.erase({step, body});
}

void VirtualRun::countInFlight(const Work& work) {
  const bool train = work.at.phase == Phase::train;
  if (work.kind == ActionKind::headForward) {
    maxInFlight_ = std::max(maxInFlight_, ++inFlight_);
  } else if (work.kind == (train ? ActionKind::headBackward : ActionKind::tailStep)) {
    --inFlight_;
  }
}

// Adds the gradients of a body's members, unless that has been done.
void VirtualRun::sumMembers(Side& side, std::uint64_t step) {
  const auto found = side.ofMembers.find(step);
  if (found == side.ofMembers.end()) return;
  float sum = found->second.front();
  for (std::size_t m = 1; m < found->second.size(); ++m) sum += found->second[m];
  side.gradients[step].at(0) = sum;
  side.ofMembers.erase(found);
}

Result VirtualRun::perform(Side& side, Work& work) {
  const std::size_t tensors = options_.cut.size();
  const bool train = work.at.phase == Phase::train;
  std::vector<TinyPart> parts;
  for (const float weight : train&& indexOf(work.kind) < kScheduledKinds
                                ? side.versions.at(versionFor(work.at.step, options_.staleness))
                                : side.weights()) {
    parts.push_back({weight, 0});
  }
  if (work.kind == ActionKind::report) sumMembers(side, work.at.step);
  std::vector<float>& gradients = side.gradients[work.at.step];
  gradients.resize(parts.size());
  if (train) {
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].gradient = gradients[p];
  }
  Result result = perform(side, work, parts, tensors);
  for (std::size_t p = 0; p < parts.size(); ++p) gradients[p] = parts[p].gradient;
  if (work.kind == ActionKind::update) {
    side.versions[work.at.step] = {};
    for (const TinyPart& part : parts) side.versions[work.at.step].push_back(part.weight);
    side.gradients.erase(work.at.step);
    // A side may keep the versions that the steps in progress and the next one need.
    const std::uint64_t oldest = versionFor(work.at.step + 1, options_.staleness);
    side.versions.erase(side.versions.begin(), side.versions.lower_bound(oldest));
  }
  return result;
}

Result VirtualRun::perform(Side& side, Work& work, std::vector<TinyPart>& parts,
                           std::size_t tensors) {
  TinyPart& first = parts.front();
  TinyPart& last = parts.back();
  const std::pair which{work.at.step, work.at.i};
  const auto received = [&] {
    CHECK(work.tensors().size() >= 1);
    return valueOf(work.tensors().front());
  };
  const auto forward = [&](float input) {
    side.forwardInputs[which] = input;
    return bundleOf(first.forward(input), tensors);
  };
  switch (work.kind) {
    case ActionKind::headForward:
      return forward(tinyInput(work.at));
    case ActionKind::bodyForward:
      return forward(received());
    case ActionKind::tailStep: {
      const float output = last.forward(received());
      side.outputs += output;
      if (work.at.phase == Phase::eval) return std::monostate{};
      return bundleOf(last.backward(received(), tinyLossGradient(output)), 1);
    }
    case ActionKind::bodyBackward: {
      // The result does not show when the gradients of the weights are computed.
      const bool sends = !options_.headIsFrozen || *side.body > 0;
      if (options_.addsByMember()) {
        std::vector<float>& ofMembers = side.ofMembers[work.at.step];
        ofMembers.resize(options_.members);
        std::swap(first.gradient, ofMembers[work.at.batch.memberOf(work.at.i)]);
      }
      const float sent = first.backward(side.forwardInputs.at(which), received());
      if (options_.addsByMember()) {
        std::swap(first.gradient, side.ofMembers[work.at.step][work.at.batch.memberOf(work.at.i)]);
      }
      return bundleOf(sent, sends ? 1 : 0);
    }
    case ActionKind::bodyWeights:
      return std::monostate{};
    case ActionKind::headBackward:
      first.backward(side.forwardInputs.at(which), received());
      return std::monostate{};
    case ActionKind::report:
      return GradientReport{squareOf(first.gradient), true};
    case ActionKind::decide:
      return decide(parts, work);
    case ActionKind::update:
      if (&side == &sides_[clients_.size()]) bodyGradients_.push_back(first.gradient);
      for (TinyPart& part : parts) part.update(std::get<StepDecision>(work.input));
      return std::monostate{};
    case ActionKind::importBlob: {
      const std::vector<float> sums = floatsOf(std::get<Blob>(work.input));
      for (std::size_t p = 0; p < parts.size(); ++p) parts[p].gradient = sums[p];
      return std::monostate{};
    }
    case ActionKind::sum: {
      std::vector<float> sums(2);
      for (const Blob& part : std::get<std::vector<Blob>>(work.input)) {
        for (std::size_t p = 0; p < sums.size(); ++p) sums[p] += floatsOf(part)[p];
      }
      return bytesOf(sums);
    }
    default: {  // exportBlob
      std::vector<float> gradients;
      for (const TinyPart& part : parts) gradients.push_back(part.gradient);
      return bytesOf(gradients);
    }
  }
}

StepDecision VirtualRun::decide(const std::vector<TinyPart>& parts, const Work& work) const {
  std::vector<double> squares = {squareOf(parts.front().gradient)};
  for (const BodyDone& done : std::get<std::vector<BodyDone>>(work.input)) {
    squares.push_back(done.report.squareSum);
  }
  squares.push_back(squareOf(parts.back().gradient));
  return tinyDecision(work.at.step, squares);
}

// ---- Links ----

void VirtualRun::startSending(std::size_t index) {
  Direction& direction = directions_[index];
  if (direction.sending || direction.waiting.empty()) return;
  const auto priorityOf = [&](const TensorMessage& message) {
    return options_.schedule->linkPriority(message.flow, direction.place);
  };
  const auto urgent =
      std::min_element(direction.waiting.begin(), direction.waiting.end(),
                       [&](const auto& a, const auto& b) { return priorityOf(a) < priorityOf(b); });
  auto shared = std::make_shared<Message>(std::move(*urgent));
  direction.waiting.erase(urgent);
  direction.sending = true;
  const double crossing = jittered(options_.tensorSeconds);
  clock_.after(crossing, [this, index, shared] {
    Direction& sent = directions_[index];
    sent.sending = false;
    sent.lastArrival =
        std::max({sent.lastArrival, sent.lastControl, clock_.now() + jittered(options_.latency)});
    clock_.at(sent.lastArrival, [this, index, shared] { deliver(index, *shared); });
    startSending(index);
  });
}

void VirtualRun::deliver(std::size_t index, const Message& message) {
  const Direction& direction = directions_[index];
  sides_[direction.to].engine->receive(direction.peer, copyOf(message));
  startWork(direction.to);
}

}  // namespace cleave::test
