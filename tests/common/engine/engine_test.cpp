// The engine's guarantees for any timing, and its responses to messages that are repeated, late or
// out of order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <limits>
#include <map>

#include "tests/support/noting_link.h"
#include "tests/support/virtual_run.h"

namespace cleave::test {
namespace {

VirtualOptions optionsFor(const std::string& schedule, std::uint32_t microBatches = 4) {
  VirtualOptions options;
  options.schedule = &findSchedule(schedule);
  options.microBatches = microBatches;
  options.latency = 0.3;
  options.tensorSeconds = 0.2;
  return options;
}

MicroBatch at(Phase phase, std::uint64_t step, std::uint32_t i, std::uint32_t microBatches = 4,
              std::uint32_t samples = 8) {
  return {phase, step, i, {microBatches, samples}};
}

TensorMessage tensor(Flow flow, const MicroBatch& where, std::uint64_t weightVersion) {
  return {flow, where, weightVersion, smallPayload(0)};
}

BodyDone doneOf(std::uint64_t step) {
  BodyDone done;
  done.step = step;
  return done;
}

std::string codeOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

// Runs three steps and two evaluations; returns all weights.
std::vector<float> trained(const VirtualOptions& options) {
  VirtualRun run(options);
  run.run(Phase::train, 1, 8);
  run.run(Phase::train, 2, 8);
  run.run(Phase::eval, 1, 8);
  run.run(Phase::eval, 2, 3);
  run.run(Phase::train, 3, 5);
  CHECK(run.client().applied() == 3);
  CHECK(run.client().appliedByPeers() == 3);
  for (std::size_t b = 0; b < options.bodies; ++b) CHECK(run.server(b).applied() == 3);
  return run.weights();
}

// Trains the whole model without engines, one micro-batch after the other. Returns all weights.
class WholeModel {
 public:
  // `replicas`: of the body, if there is only one. Each adds the gradients of its micro-batches;
  // the sums are added in rank order.
  WholeModel(std::size_t bodies, std::uint32_t microBatches, std::uint32_t staleness = 0,
             std::uint32_t replicas = 1)
      : parts_(tinyParts(bodies)),
        microBatches_(microBatches),
        staleness_(staleness),
        replicas_(replicas),
        versions_{parts_} {}

  void run(Phase phase, std::uint64_t step, std::uint32_t samples) {
    MicroBatch at{phase, step, 0, {Division::of(samples, microBatches_)}};
    std::vector<std::vector<float>> inputs(at.batch.count);
    // The weights with which the step is computed, and its gradients.
    const bool isStale = phase == Phase::train && staleness_ > 0;
    std::vector<TinyPart> used = isStale ? versions_.at(versionOf(step)) : parts_;
    std::vector<float> bodyGradients(replicas_, 0);
    for (at.i = 0; at.i < at.batch.count; ++at.i) {
      float& bodyGradient = bodyGradients[at.i % replicas_];
      float x = tinyInput(at);
      for (const TinyPart& part : used) {
        inputs[at.i].push_back(x);
        x = part.forward(x);
      }
      outputs_ += x;
      if (phase == Phase::eval) continue;
      float gradient = tinyLossGradient(x);
      if (replicas_ > 1) used[1].gradient = bodyGradient;
      for (std::size_t p = used.size(); p-- > 0;) {
        gradient = used[p].backward(inputs[at.i][p], gradient);
      }
      bodyGradient = used[1].gradient;
    }
    if (phase == Phase::eval) return;
    used[1].gradient = bodyGradients[0];
    for (std::uint32_t r = 1; r < replicas_; ++r) used[1].gradient += bodyGradients[r];
    bodyGradients_.push_back(used[1].gradient);
    std::vector<double> squares;
    for (const TinyPart& part : used) squares.push_back(squareOf(part.gradient));
    const StepDecision decision = tinyDecision(step, squares);
    for (std::size_t p = 0; p < used.size(); ++p) {
      parts_[p].gradient = used[p].gradient;
      parts_[p].update(decision);
    }
    versions_.push_back(parts_);
  }

  // The gradient of the first body in each step. Weights differ less: an update may round away the
  // last bits.
  const std::vector<float>& bodyGradients() const { return bodyGradients_; }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const TinyPart& part : parts_) all.push_back(part.weight);
    all.push_back(outputs_);
    return all;
  }

 private:
  // Not versionFor(), so that the tests detect an error in it.
  std::size_t versionOf(std::uint64_t step) const {
    const auto version =
        static_cast<std::int64_t>(step) - 1 - static_cast<std::int64_t>(staleness_);
    return static_cast<std::size_t>(std::max<std::int64_t>(0, version));
  }

  std::vector<TinyPart> parts_;
  const std::uint32_t microBatches_;
  const std::uint32_t staleness_;
  const std::uint32_t replicas_;
  std::vector<float> bodyGradients_;
  std::vector<std::vector<TinyPart>> versions_;  // the weights after each update
  float outputs_ = 0;
};

std::vector<float> trainedWhole(std::size_t bodies) {
  WholeModel whole(bodies, 4);
  whole.run(Phase::train, 1, 8);
  whole.run(Phase::train, 2, 8);
  whole.run(Phase::eval, 1, 8);
  whole.run(Phase::eval, 2, 3);
  whole.run(Phase::train, 3, 5);
  return whole.weights();
}

TEST_CASE("one to four bodies in a row compute the same as the whole model, for any timing") {
  for (const std::size_t bodies : {1, 2, 3, 4}) {
    const std::vector<float> whole = trainedWhole(bodies);
    for (const Schedule& schedule : scheduleTable()) {
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(bodies, schedule.name, seed);
        VirtualOptions options = optionsFor(std::string(schedule.name));
        options.bodies = bodies;
        options.jitterSeed = seed;
        options.hasEdges = seed % 2 == 1;
        REQUIRE((trained(options) == whole));
      }
    }
  }
}

TEST_CASE("direct links shorten a step, because tensors do not pass through the client") {
  VirtualOptions options = optionsFor("priority", 1);
  options.bodies = 3;
  VirtualRun hub(options);
  options.hasEdges = true;
  VirtualRun direct(options);
  const double seconds = hub.run(Phase::train, 1, 8);
  // Two cuts, in both directions: one crossing less for each.
  CHECK(direct.run(Phase::train, 1, 8) == Approx(seconds - 4 * (0.2 + 0.3)));
  CHECK((direct.weights() == hub.weights()));
}

// The weights and the body's gradients.
using Trained = std::pair<std::vector<float>, std::vector<float>>;

// Four steps and two evaluations of a body with replicas.
Trained trainedReplicas(const VirtualOptions& options) {
  VirtualRun run(options);
  run.train(1, {8, 8, 13});
  run.run(Phase::eval, 1, 8);
  run.run(Phase::eval, 2, 6);
  run.train(4, {5});
  for (std::size_t r = 0; r < options.replicas; ++r) CHECK(run.server(r).applied() == 4);
  return {run.weights(), run.bodyGradients()};
}

Trained trainedReplicasWhole(std::uint32_t microBatches, std::uint32_t replicas,
                             std::uint32_t staleness) {
  WholeModel whole(1, microBatches, staleness, replicas);
  std::uint64_t step = 0;
  for (const std::uint32_t samples : {8, 8, 13}) whole.run(Phase::train, ++step, samples);
  whole.run(Phase::eval, 1, 8);
  whole.run(Phase::eval, 2, 6);
  whole.run(Phase::train, 4, 5);
  return {whole.weights(), whole.bodyGradients()};
}

TEST_CASE("replicas of a body compute the same as the whole model, for any timing") {
  for (const std::uint32_t replicas : {2, 3, 4}) {
    for (const std::uint32_t microBatches : {4, 5, 7, 8}) {
      for (const std::uint32_t staleness : {0, 1, 2}) {
        const Trained whole = trainedReplicasWhole(microBatches, replicas, staleness);
        for (const Schedule& schedule : scheduleTable()) {
          if (staleness > 0 && schedule.isStrict) continue;
          for (std::uint64_t seed = 0; seed < 10; ++seed) {
            CAPTURE(replicas, microBatches, staleness, schedule.name, seed);
            VirtualOptions options = optionsFor(std::string(schedule.name), microBatches);
            options.replicas = replicas;
            options.staleness = staleness;
            options.reduceSeconds = 0.7;
            options.jitterSeed = seed;
            REQUIRE((trainedReplicas(options) == whole));
          }
        }
      }
    }
  }
}

TEST_CASE("each number of replicas adds gradients in another order") {
  std::vector<std::vector<float>> gradients;
  for (const std::uint32_t replicas : {1, 2, 3, 4}) {
    WholeModel whole(1, 8, 0, replicas);
    for (std::uint64_t step = 1; step <= 50; ++step) whole.run(Phase::train, step, 8);
    gradients.push_back(whole.bodyGradients());
    for (std::size_t r = 0; r + 1 < gradients.size(); ++r) {
      CHECK(gradients[r] != gradients.back());
    }
  }
}

TEST_CASE("replicas share the work of a step") {
  VirtualOptions options = optionsFor("priority", 8);
  options.seconds = scheduledSeconds({0.1, 0.1, 0.1, 4, 4, 0});
  const auto secondsWith = [&](std::uint32_t replicas) {
    options.replicas = replicas;
    VirtualRun run(options);
    return run.run(Phase::train, 1, 8);
  };
  const double one = secondsWith(1);
  CHECK(secondsWith(2) < 0.6 * one);
  CHECK(secondsWith(4) < 0.4 * one);
}

TEST_CASE("the share of a batch is a batch with the same sizes") {
  for (std::uint32_t samples = 1; samples <= 40; ++samples) {
    for (std::uint32_t microBatches = 1; microBatches <= 12; ++microBatches) {
      const Division whole = Division::of(samples, microBatches);
      for (std::uint32_t replicas = 1; replicas <= std::min(4u, whole.count); ++replicas) {
        std::uint32_t sum = 0, seen = 0;
        for (std::uint32_t rank = 0; rank < replicas; ++rank) {
          const Replica replica{rank, replicas};
          const Division share = whole.shareOf(replica);
          CAPTURE(samples, microBatches, replicas, rank);
          REQUIRE(share == Division::of(share.samples, replica.shareOf(microBatches)));
          sum += share.samples;
          for (std::uint32_t own = 0; own < share.count; ++own, ++seen) {
            const std::uint32_t i = replica.numberInBatch(own);
            REQUIRE(MicroBatch{Phase::train, 1, i, whole}.inShareOf(replica).i == own);
            REQUIRE(share.size(own) == whole.size(i));
          }
        }
        REQUIRE(sum == samples);
        REQUIRE(seen == whole.count);
      }
    }
  }
}

TEST_CASE("the comparison detects a missing or extra step") {
  WholeModel two(1, 4);
  two.run(Phase::train, 1, 8);
  two.run(Phase::train, 2, 8);
  const std::vector<float> weights = two.weights();
  const std::vector<float> all = trainedWhole(1);
  for (std::size_t p = 0; p < weights.size(); ++p) CHECK(weights[p] != all[p]);
}

TEST_CASE("a mask beside the activation crosses each cut, and has no gradient") {
  for (const std::size_t bodies : {1, 3}) {
    VirtualOptions options = optionsFor("priority");
    options.bodies = bodies;
    options.cut = {{}, {"mask", false}};
    options.jitterSeed = 5;
    CHECK((trained(options) == trainedWhole(bodies)));
    options.hasEdges = true;
    CHECK((trained(options) == trainedWhole(bodies)));
  }
}

TEST_CASE("a frozen head gets no gradients, and the result is the same in every order") {
  for (const std::size_t bodies : {1, 3}) {
    VirtualOptions options = optionsFor("priority");
    options.bodies = bodies;
    options.headIsFrozen = true;
    const std::vector<float> expected = trained(options);
    CHECK(expected.front() == tinyParts(bodies).front().weight);
    CHECK(expected.at(1) != tinyParts(bodies).at(1).weight);
    for (const Schedule& schedule : scheduleTable()) {
      CAPTURE(schedule.name);
      options.schedule = &schedule;
      for (const bool hasEdges : {false, true}) {
        options.hasEdges = hasEdges;
        options.jitterSeed = 7;
        CHECK((trained(options) == expected));
      }
    }
  }
}

TEST_CASE("engines restored between two batches continue like the saved ones") {
  VirtualOptions options = optionsFor("priority");
  options.bodies = 2;
  VirtualRun before(options);
  before.run(Phase::train, 1, 8);
  before.run(Phase::train, 2, 8);
  before.run(Phase::eval, 1, 8);
  options.jitterSeed = 3;
  VirtualRun after(options);
  after.restore(before.save());
  CHECK(after.client().applied() == 2);
  CHECK(after.client().appliedByPeers() == 2);
  after.run(Phase::eval, 2, 3);
  after.run(Phase::train, 3, 5);
  CHECK((after.weights() == trainedWhole(2)));
}

TEST_CASE("the client fetches the gradients of every body before it decides") {
  VirtualOptions options = optionsFor("priority");
  options.fetchGradients = true;
  options.bodies = 2;
  VirtualRun run(options);
  run.run(Phase::train, 1, 8);
  for (const std::size_t body : {0, 1}) {
    REQUIRE(run.client().blob(body));
    CHECK(run.client().blob(body)->flow == kGradsBody);
  }
  run.run(Phase::train, 2, 8);
  CHECK(run.server(1).applied() == 2);
}

// ---- Staleness ----

// Samples of consecutive training steps; some batches have fewer samples than micro-batches.
const std::vector<std::uint32_t> kStaleSteps = {8, 8, 3, 8, 5, 8, 8, 8};

std::vector<float> trainedStale(VirtualOptions options, std::uint32_t staleness) {
  options.staleness = staleness;
  VirtualRun run(options);
  run.train(1, kStaleSteps);
  run.run(Phase::eval, 1, 8);
  run.train(1 + kStaleSteps.size(), {8, 8});
  CHECK(run.client().applied() == kStaleSteps.size() + 2);
  CHECK(run.client().appliedByPeers() == kStaleSteps.size() + 2);
  CHECK(run.maxInProgress() == staleness + 1);
  return run.weights();
}

std::vector<float> trainedStaleWhole(std::size_t bodies, std::uint32_t microBatches,
                                     std::uint32_t staleness) {
  WholeModel whole(bodies, microBatches, staleness);
  std::uint64_t step = 0;
  for (const std::uint32_t samples : kStaleSteps) whole.run(Phase::train, ++step, samples);
  whole.run(Phase::eval, 1, 8);
  for (int more = 0; more < 2; ++more) whole.run(Phase::train, ++step, 8);
  return whole.weights();
}

TEST_CASE("with staleness, steps overlap and compute the same as delayed updates in one process") {
  for (const std::size_t bodies : {1, 3}) {
    for (const std::uint32_t microBatches : {1, 4}) {  // 1: PipeDream; 4: PipeDream-2BW if D is 1
      for (const std::uint32_t staleness : {0, 1, 2, 3}) {
        const std::vector<float> whole = trainedStaleWhole(bodies, microBatches, staleness);
        for (const Schedule& schedule : scheduleTable()) {
          if (!schedule.overlapsSteps) continue;
          for (std::uint64_t seed = 0; seed < 20; ++seed) {
            CAPTURE(bodies, microBatches, staleness, schedule.name, seed);
            VirtualOptions options = optionsFor(std::string(schedule.name), microBatches);
            options.bodies = bodies;
            options.jitterSeed = seed;
            options.hasEdges = seed % 2 == 1;
            REQUIRE((trainedStale(options, staleness) == whole));
          }
        }
      }
    }
  }
}

TEST_CASE("another staleness gives other weights") {
  const std::vector<float> none = trainedStaleWhole(1, 4, 0);
  const std::vector<float> one = trainedStaleWhole(1, 4, 1);
  const std::vector<float> two = trainedStaleWhole(1, 4, 2);
  for (std::size_t p = 0; p < none.size(); ++p) {
    CAPTURE(p);
    CHECK(none[p] != one[p]);
    CHECK(one[p] != two[p]);
  }
}

TEST_CASE("steps run one after the other give the same weights as overlapping steps") {
  VirtualOptions options = optionsFor("priority");
  options.staleness = 2;
  VirtualRun run(options);
  std::uint64_t step = 0;
  for (const std::uint32_t samples : kStaleSteps) run.run(Phase::train, ++step, samples);
  run.run(Phase::eval, 1, 8);
  for (int more = 0; more < 2; ++more) run.run(Phase::train, ++step, 8);
  CHECK((run.weights() == trainedStaleWhole(1, 4, 2)));
}

TEST_CASE("with staleness, a mask crosses each cut, gradients are fetched, and a head is frozen") {
  VirtualOptions options = optionsFor("priority");
  options.bodies = 2;
  options.cut = {{}, {"mask", false}};
  options.fetchGradients = true;
  options.jitterSeed = 4;
  CHECK((trainedStale(options, 2) == trainedStaleWhole(2, 4, 2)));
  options.headIsFrozen = true;
  const std::vector<float> frozen = trainedStale(options, 2);
  CHECK(frozen.front() == tinyParts(2).front().weight);
  options.jitterSeed = 9;
  CHECK((trainedStale(options, 2) == frozen));
}

TEST_CASE("engines restored after a step repeat the steps that were in progress") {
  VirtualOptions options = optionsFor("priority");
  options.staleness = 2;
  VirtualRun before(options);
  before.train(1, {8, 8, 3, 8, 5});
  options.jitterSeed = 3;
  VirtualRun after(options);
  after.restore(before.save());
  after.train(6, {8, 8, 8});
  after.run(Phase::eval, 1, 8);
  after.train(9, {8, 8});
  CHECK((after.weights() == trainedStaleWhole(1, 4, 2)));
}

TEST_CASE("staleness hides the time between two steps") {
  VirtualOptions options = optionsFor("priority");
  options.latency = 5;
  const std::vector<std::uint32_t> steps(30, 8);
  const auto secondsPerStep = [&](std::uint32_t staleness) {
    options.staleness = staleness;
    const std::vector<double> ends = VirtualRun(options).train(1, steps);
    return (ends[19] - ends[9]) / 10;
  };
  // The client computes 4 x 3 s per step. Without staleness, each step also takes the path of a
  // micro-batch with its four latencies.
  CHECK(secondsPerStep(0) > 2 * 12);
  CHECK(secondsPerStep(1) < 1.5 * 12);
  CHECK(secondsPerStep(2) == Approx(12));
}

TEST_CASE("a later step begins only when the weights of its version are applied") {
  const auto link = std::make_shared<NotingLink>();
  EngineOptions options{&findSchedule("priority"), 4, 8};
  options.staleness = 1;
  Coordinator client(options, {{Place{}, link}});
  CHECK(client.mayBegin(at(Phase::train, 1, 0)));
  CHECK_FALSE(client.mayBegin(at(Phase::train, 2, 0)));
  client.begin(at(Phase::train, 1, 0));
  CHECK_FALSE(client.mayBegin(at(Phase::eval, 1, 0)));
  CHECK(client.mayBegin(at(Phase::train, 2, 0)));
  client.begin(at(Phase::train, 2, 0));
  CHECK_FALSE(client.mayBegin(at(Phase::train, 3, 0)));
}

// ---- Several clients at one body ----

// A body that takes its micro-batches from several clients in turn. Each client's head and tail
// compute that client's micro-batches, and sum their gradients.
class SharedBody {
 public:
  SharedBody(std::size_t clients, const Schedule& schedule, std::uint64_t seed) : seed_(seed) {
    std::vector<std::shared_ptr<EngineLink>> links;
    const std::vector<TinyPart> parts = tinyParts(1);
    for (std::size_t c = 0; c < clients; ++c) {
      links_.push_back(std::make_shared<NotingLink>());
      links.push_back(links_.back());
      clients_.push_back(std::make_unique<Client>(
          Client{StageEngine(clientRows({Place{}}), schedule.pick, kMicroBatches),
                 parts[0],
                 parts[2],
                 {},
                 {}}));
    }
    body_ = parts[1];
    engine_ = std::make_unique<Participant>(EngineOptions{&schedule, kMicroBatches, kMicroBatches},
                                            Place{}, links,
                                            [clients](std::uint32_t i) { return i % clients; });
  }

  void step(std::uint64_t number) {
    at_ = {Phase::train, number, 0, {kMicroBatches, kMicroBatches}};
    for (std::size_t c = 0; c < clients_.size(); ++c) {
      clients_[c]->stage.begin(Phase::train, shareOf(c));
    }
    // The engine or link that advances next is drawn at random.
    while (!isDone()) advance(draw(2 * clients_.size() + 1));
    std::vector<double> squares = {0, links_[0]->report().squareSum, 0};
    TinyPart head = clients_[0]->head, tail = clients_[0]->tail;
    for (std::size_t c = 1; c < clients_.size(); ++c) {
      head.gradient += clients_[c]->head.gradient;
      tail.gradient += clients_[c]->tail.gradient;
    }
    squares[0] = squareOf(head.gradient);
    squares[2] = squareOf(tail.gradient);
    const StepDecision decision = tinyDecision(number, squares);
    engine_->receive(0, decision);
    workAtBody();
    head.update(decision);
    tail.update(decision);
    for (auto& client : clients_) {
      client->head = head;
      client->tail = tail;
    }
    for (auto& link : links_) link->sent.clear();
  }

  std::vector<float> weights() const {
    return {clients_[0]->head.weight, body_.weight, clients_[0]->tail.weight};
  }
  Participant& engine() { return *engine_; }

  static constexpr std::uint32_t kMicroBatches = 7;

 private:
  struct Client {
    StageEngine stage;
    TinyPart head, tail;
    std::map<std::uint32_t, float> inputs;  // inputs of the tail, by global micro-batch
    std::deque<TensorMessage> toBody;
  };
  class NotingLink : public EngineLink {
   public:
    void send(Message message) override { sent.push_back(std::move(message)); }
    void commit(std::uint64_t) override {}
    bool hasReport() const {
      return !sent.empty() && std::holds_alternative<BodyDone>(sent.back());
    }
    GradientReport report() const { return std::get<BodyDone>(sent.back()).report; }
    std::deque<Message> sent;
  };

  bool isDone() const {
    return links_[0]->hasReport() &&
           std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->stage.isDone(); });
  }
  std::uint64_t draw(std::uint64_t below) {
    return randomBits(randomKey(seed_, "turns"), draws_++) % below;
  }
  std::uint32_t shareOf(std::size_t c) const {
    const auto clients = static_cast<std::uint32_t>(clients_.size());
    return (kMicroBatches + clients - 1 - static_cast<std::uint32_t>(c)) / clients;
  }
  std::uint32_t globalOf(std::size_t c, std::uint32_t local) const {
    return static_cast<std::uint32_t>(local * clients_.size() + c);
  }

  void advance(std::uint64_t which) {
    const std::size_t c = which / 2;
    if (c == clients_.size()) return workAtBody();
    which % 2 == 0 ? workAtClient(c) : exchange(c);
  }

  // Delivers at most one message in each direction.
  void exchange(std::size_t c) {
    Client& client = *clients_[c];
    if (!client.toBody.empty()) {
      engine_->receive(c, std::move(client.toBody.front()));
      client.toBody.pop_front();
    }
    auto& sent = links_[c]->sent;
    if (sent.empty() || !std::holds_alternative<TensorMessage>(sent.front())) return;
    auto& tensor = std::get<TensorMessage>(sent.front());
    client.stage.arrived(tensor.flow, tensor.at.i / static_cast<std::uint32_t>(clients_.size()),
                         std::move(tensor.payload));
    sent.pop_front();
  }

  void workAtClient(std::size_t c) {
    Client& client = *clients_[c];
    auto action = client.stage.next();
    if (!action) return;
    MicroBatch at = at_;
    at.i = globalOf(c, action->i);
    const float received = action->inputs.empty() ? 0 : valueOf(action->inputs.front());
    float result = 0;
    if (action->kind == ActionKind::headForward) {
      result = client.head.forward(tinyInput(at));
    } else if (action->kind == ActionKind::tailStep) {
      result = client.tail.backward(received, tinyLossGradient(client.tail.forward(received)));
    } else {
      client.head.backward(tinyInput(at), received);
    }
    client.stage.completed(action->kind);
    for (const Flow flow : client.stage.outputsOf(action->kind)) {
      client.toBody.push_back({flow, at, engine_->applied(), smallPayload(result)});
    }
  }

  void workAtBody() {
    auto work = engine_->next();
    if (!work) return;
    const std::uint32_t i = work->at.i;
    Result result;
    if (work->kind == ActionKind::bodyForward) {
      inputs_[i] = valueOf(work->tensors().front());
      result = bundleOf(smallPayload(body_.forward(inputs_[i])));
    } else if (work->kind == ActionKind::bodyBackward) {
      result =
          bundleOf(smallPayload(body_.backward(inputs_.at(i), valueOf(work->tensors().front()))));
    } else if (work->kind == ActionKind::report) {
      result = GradientReport{squareOf(body_.gradient), true};
    } else if (work->kind == ActionKind::update) {
      body_.update(std::get<StepDecision>(work->input));
    }
    engine_->complete(work->token, std::move(result), 1);
  }

  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  MicroBatch at_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::shared_ptr<NotingLink>> links_;
  TinyPart body_;
  std::map<std::uint32_t, float> inputs_;
  std::unique_ptr<Participant> engine_;
};

// Trains the whole model. Gradients of head and tail are summed by client, and gradients of the
// body in the order of micro-batches.
std::vector<float> trainedTogether(std::size_t clients, std::uint64_t steps) {
  std::vector<TinyPart> parts = tinyParts(1);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    std::vector<TinyPart> heads(clients, parts[0]), tails(clients, parts[2]);
    MicroBatch at{Phase::train, step, 0, {SharedBody::kMicroBatches, SharedBody::kMicroBatches}};
    for (; at.i < at.batch.count; ++at.i) {
      const std::size_t c = at.i % clients;
      const float a = heads[c].forward(tinyInput(at));
      const float b = parts[1].forward(a);
      const float back = tails[c].backward(b, tinyLossGradient(tails[c].forward(b)));
      heads[c].backward(tinyInput(at), parts[1].backward(a, back));
    }
    for (std::size_t c = 0; c < clients; ++c) {
      parts[0].gradient += heads[c].gradient;
      parts[2].gradient += tails[c].gradient;
    }
    std::vector<double> squares;
    for (const TinyPart& part : parts) squares.push_back(squareOf(part.gradient));
    const StepDecision decision = tinyDecision(step, squares);
    for (TinyPart& part : parts) part.update(decision);
  }
  return {parts[0].weight, parts[1].weight, parts[2].weight};
}

TEST_CASE("one to four clients at one body compute the same as the whole model") {
  for (const std::size_t clients : {1, 2, 3, 4}) {
    const std::vector<float> whole = trainedTogether(clients, 3);
    for (const Schedule& schedule : scheduleTable()) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(clients, schedule.name, seed);
        SharedBody shared(clients, schedule, seed);
        for (std::uint64_t step = 1; step <= 3; ++step) shared.step(step);
        REQUIRE((shared.weights() == whole));
      }
    }
  }
}

TEST_CASE(
    "a client cannot send another client's micro-batches, and only the first client decides") {
  SharedBody shared(2, findSchedule("priority"), 1);
  const MicroBatch second{
      Phase::train, 1, 1, {SharedBody::kMicroBatches, SharedBody::kMicroBatches}};
  CHECK(codeOf([&] { shared.engine().receive(0, tensor(activationAt(0), second, 0)); }) ==
        "bad-key");
  CHECK(codeOf([&] {
          shared.engine().receive(1, StepDecision{1, true, {0.1}, 1, 1, false, {}});
        }) == "unexpected-message");
}

// A server's engine without a peer, on a link that records the engine's requests.
struct Server {
  explicit Server(std::uint32_t delay = 0, bool hasEdgeBefore = false)
      : staleness(delay),
        engine({&findSchedule("priority"), 4, 4 * (delay + 1), false, false, delay, hasEdgeBefore,
                hasEdgeBefore},
               Place{}, {noted}) {}

  const std::uint32_t staleness;
  std::shared_ptr<NotingLink> noted = std::make_shared<NotingLink>();
  NotingLink& link = *noted;
  Participant engine;

  // Runs all actions that are ready.
  int work() {
    int actions = 0;
    while (auto work = engine.next()) {
      Result result;
      if (work->kind == ActionKind::report) {
        result = GradientReport{2, true};
      } else if (work->kind == ActionKind::exportBlob) {
        result = std::make_shared<const std::vector<std::byte>>(4);
      } else if (work->kind != ActionKind::update) {
        result = bundleOf(smallPayload(1));
      }
      engine.complete(work->token, std::move(result), 0.5);
      ++actions;
    }
    return actions;
  }
  void receive(Message message) { engine.receive(0, std::move(message)); }
  void trainUntilBodyDone(std::uint64_t step) {
    for (const Flow flow : {activationAt(0), gradientAt(1)}) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        receive(tensor(flow, at(Phase::train, step, i), versionFor(step, staleness)));
        work();
      }
    }
  }
  template <typename Kind>
  int sentOf() const {
    int count = 0;
    for (const Message& message : link.sent) count += std::holds_alternative<Kind>(message) ? 1 : 0;
    return count;
  }
};

StepDecision decisionOf(std::uint64_t step, double rate = 0.1) {
  return {step, true, {rate}, 1, 1, false, {}};
}

struct ServerWithWeights {
  std::shared_ptr<NotingLink> noted = std::make_shared<NotingLink>();
  NotingLink& link = *noted;
  Participant engine{{&findSchedule("priority"), 4, 4, true}, Place{}, {noted}};
};

TEST_CASE("initial weights are loaded once, and then acknowledged") {
  ServerWithWeights server;
  CHECK_FALSE(server.engine.weightsInPlace());
  server.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
  const auto work = server.engine.next();
  REQUIRE(work);
  CHECK(work->kind == ActionKind::importBlob);
  CHECK(std::holds_alternative<Blob>(work->input));
  CHECK_FALSE(server.engine.next());
  CHECK_FALSE(server.engine.weightsInPlace());
  CHECK(codeOf([&] {
          server.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
        }) == "unexpected-message");
  server.engine.complete(work->token, std::monostate{}, 0.1);
  CHECK(server.engine.weightsInPlace());
  REQUIRE(server.link.sent.size() == 1);
  CHECK(std::get<StepOk>(server.link.sent[0]).step == 0);
  CHECK(codeOf([&] {
          server.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
        }) == "unexpected-message");
}

TEST_CASE("nothing may precede initial weights, and a run that expects none refuses them") {
  ServerWithWeights server;
  CHECK(codeOf([&] {
          server.engine.receive(0, tensor(activationAt(0), at(Phase::train, 1, 0), 0));
        }) == "unexpected-message");
  CHECK(codeOf([&] { server.engine.receive(0, Fetch{kWeightsBody}); }) == "unexpected-message");
  CHECK(codeOf([&] {
          server.engine.receive(0, Blob{kGradsBody, {}, nullptr});
        }) == "unexpected-message");
  Server without;
  CHECK(codeOf([&] { without.receive(Blob{kWeightsBody, {}, nullptr}); }) == "unexpected-message");
}

TEST_CASE("a snapshot is taken between a step's update and everything that follows it") {
  Server server;
  server.trainUntilBodyDone(1);
  StepDecision decision = decisionOf(1);
  decision.checkpoint = true;
  server.receive(decision);
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));  // must wait for the update
  const auto update = server.engine.next();
  REQUIRE(update);
  CHECK(update->kind == ActionKind::update);
  server.engine.complete(update->token, std::monostate{}, 0.1);
  CHECK(server.link.committed == 1);
  CHECK(server.sentOf<StepOk>() == 1);  // the client need not wait for the snapshot
  CHECK_FALSE(server.engine.batchDone());
  const auto snapshot = server.engine.next();
  REQUIRE(snapshot);
  CHECK(snapshot->kind == ActionKind::snapshot);
  CHECK(std::get<StepDecision>(snapshot->input) == decision);
  CHECK(server.engine.state().applied == 1);
  CHECK_FALSE(server.engine.next());
  server.engine.complete(snapshot->token, std::monostate{}, 0.1);
  CHECK(server.engine.batchDone());
  const auto next = server.engine.next();
  REQUIRE(next);
  CHECK(next->kind == ActionKind::bodyForward);
  CHECK(next->at.step == 2);
}

struct ResumingServer {
  std::shared_ptr<NotingLink> noted = std::make_shared<NotingLink>();
  NotingLink& link = *noted;
  Participant engine{{&findSchedule("priority"), 4, 4, false, true}, Place{}, {noted}};
};

TEST_CASE("a body continues after the step of its checkpoint") {
  ResumingServer server;
  CHECK_FALSE(server.engine.weightsInPlace());
  CHECK(codeOf([&] {
          server.engine.receive(0, tensor(activationAt(0), at(Phase::train, 8, 0), 7));
        }) == "unexpected-message");
  CHECK(codeOf([&] {
          server.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
        }) == "unexpected-message");
  server.engine.receive(0, Resume{7});
  const auto work = server.engine.next();
  REQUIRE(work);
  CHECK(work->kind == ActionKind::restore);
  CHECK(std::get<Resume>(work->input).step == 7);
  server.engine.complete(work->token, EngineState{7, 3}, 0.1);
  CHECK(server.engine.weightsInPlace());
  REQUIRE(server.link.sent.size() == 1);
  CHECK(std::get<StepOk>(server.link.sent[0]).step == 7);
  CHECK(codeOf([&] { server.engine.receive(0, Resume{7}); }) == "unexpected-message");
  CHECK(codeOf([&] {
          server.engine.receive(0, tensor(activationAt(0), at(Phase::train, 7, 0), 6));
        }) == "bad-key");
  server.engine.receive(0, tensor(activationAt(0), at(Phase::train, 8, 0), 7));
  REQUIRE(server.engine.next());

  Server fresh;
  CHECK(codeOf([&] { fresh.receive(Resume{7}); }) == "unexpected-message");
}

TEST_CASE("a client continues only when every body has restored its checkpoint") {
  const auto link = std::make_shared<NotingLink>();
  Coordinator client({&findSchedule("priority"), 4, 4, false, true}, {{Place{}, link}});
  CHECK_FALSE(client.weightsInPlace());
  client.resume({7, 3});
  REQUIRE(link->sent.size() == 1);
  CHECK(std::get<Resume>(link->sent[0]).step == 7);
  CHECK(codeOf([&] { client.receive(0, StepOk{6}); }) != "");
  CHECK(codeOf([&] { client.receive(0, StepOk{8}); }) == "step-gap");
  client.receive(0, StepOk{7});
  CHECK(client.weightsInPlace());
  client.begin({Phase::train, 8, 0, {4, 8}});
  CHECK(client.state().evaluated == 3);
}

TEST_CASE("a client that sends initial weights waits for StepOk 0") {
  const auto noted = std::make_shared<NotingLink>();
  NotingLink& link = *noted;
  Coordinator engine({&findSchedule("priority"), 4, 4, true}, {{Place{}, noted}});
  CHECK_FALSE(engine.weightsInPlace());
  engine.sendWeights(std::make_shared<const std::vector<std::byte>>(3));
  REQUIRE(link.sent.size() == 1);
  CHECK(std::get<Blob>(link.sent[0]).bytes.size() == 3);
  engine.receive(0, StepOk{0});
  CHECK(engine.weightsInPlace());
  CHECK(codeOf([&] { engine.receive(0, StepOk{0}); }) == "bad-key");
}

TEST_CASE("the server refuses repeated messages of the current and of finished steps") {
  {
    Server server;
    server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
    server.work();
    CHECK(codeOf([&] { server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.trainUntilBodyDone(1);
    CHECK(codeOf([&] { server.receive(tensor(gradientAt(1), at(Phase::train, 1, 0), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.trainUntilBodyDone(1);
    server.receive(decisionOf(1));
    server.work();
    CHECK(codeOf([&] { server.receive(tensor(gradientAt(1), at(Phase::train, 1, 3), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.receive(tensor(activationAt(0), at(Phase::eval, 1, 0, 1, 1), 0));
    server.work();
    CHECK(codeOf([&] {
            server.receive(tensor(activationAt(0), at(Phase::eval, 1, 0, 1, 1), 0));
          }) == "bad-key");
  }
}

TEST_CASE("a Step is applied once, and refused if repeated") {
  Server server;
  server.trainUntilBodyDone(1);
  CHECK(server.sentOf<BodyDone>() == 1);
  server.receive(decisionOf(1));
  CHECK(server.work() == 1);
  CHECK(server.sentOf<StepOk>() == 1);
  CHECK(server.link.committed == 1);
  CHECK(codeOf([&] { server.receive(decisionOf(1)); }) == "step-gap");
  CHECK(server.engine.applied() == 1);

  Server waiting;  // the second Step arrives before the update, and is checked after it
  waiting.trainUntilBodyDone(1);
  waiting.receive(decisionOf(1));
  waiting.receive(decisionOf(1));
  CHECK(codeOf([&] { waiting.work(); }) == "step-gap");
  CHECK(waiting.engine.applied() == 1);
}

TEST_CASE("a skipped step also advances the count of steps") {
  Server server;
  server.trainUntilBodyDone(1);
  StepDecision skip = decisionOf(1);
  skip.apply = false;
  server.receive(skip);
  server.work();
  CHECK(server.engine.applied() == 1);
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
  CHECK(server.work() == 1);
}

TEST_CASE("tensors that arrive after a Step wait for its update") {
  Server server;
  server.trainUntilBodyDone(1);
  server.receive(decisionOf(1));
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
  server.receive(Fetch{kWeightsBody});  // is deferred, and refused once step 2 has begun
  const auto first = server.engine.next();
  REQUIRE(first);
  CHECK(first->kind == ActionKind::update);
  CHECK_FALSE(server.engine.next());
}

TEST_CASE("a batch whose first tensor arrives early begins after the previous one has ended") {
  Server server;
  server.trainUntilBodyDone(1);
  server.receive(decisionOf(1));
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
  const auto update = server.engine.next();
  REQUIRE(update);
  server.engine.complete(update->token, std::monostate{}, 0.5);
  CHECK(server.engine.batchDone());
  CHECK(server.engine.ended().at.step == 1);
  const auto next = server.engine.next();
  REQUIRE(next);
  CHECK_FALSE(server.engine.batchDone());
  CHECK(next->at.step == 2);
}

TEST_CASE("a Fetch after a Step copies the weights after its update, before the next forward") {
  // The next step's first tensor arrives before the update, during it, or right after it.
  for (const int when : {0, 1, 2}) {
    CAPTURE(when);
    Server server;
    const auto nextStepBegins = [&](int moment) {
      if (moment == when) {
        server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
      }
    };
    server.trainUntilBodyDone(1);
    server.receive(decisionOf(1));
    server.receive(Fetch{kWeightsBody});
    nextStepBegins(0);
    const auto update = server.engine.next();
    REQUIRE(update);
    CHECK(update->kind == ActionKind::update);
    nextStepBegins(1);
    server.engine.complete(update->token, std::monostate{}, 0.5);
    nextStepBegins(2);
    const auto copy = server.engine.next();
    REQUIRE(copy);
    CHECK(copy->kind == ActionKind::exportBlob);
    server.engine.complete(copy->token, std::make_shared<const std::vector<std::byte>>(4), 0.5);
    const auto forward = server.engine.next();
    REQUIRE(forward);
    CHECK(forward->kind == ActionKind::bodyForward);
    CHECK(server.sentOf<Blob>() == 1);
  }
}

TEST_CASE(
    "a Fetch before a Step copies the gradients before the update, even if both have arrived") {
  Server server;
  server.trainUntilBodyDone(1);
  server.receive(Fetch{kGradsBody});
  server.receive(decisionOf(1));
  const auto copy = server.engine.next();
  REQUIRE(copy);
  CHECK(copy->kind == ActionKind::exportBlob);
  CHECK_FALSE(server.engine.next());
  server.engine.complete(copy->token, std::make_shared<const std::vector<std::byte>>(4), 0.5);
  const auto update = server.engine.next();
  REQUIRE(update);
  CHECK(update->kind == ActionKind::update);
}

TEST_CASE("a Step numbered 0 is refused") {
  Server server;
  CHECK(codeOf([&] { server.receive(decisionOf(0)); }) == "step-gap");
}

TEST_CASE("weights are fetched between batches only") {
  Server server;
  server.receive(Fetch{kWeightsBody});
  server.work();
  CHECK(server.sentOf<Blob>() == 1);
  server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
  CHECK(codeOf([&] { server.receive(Fetch{kWeightsBody}); }) == "unexpected-message");
  CHECK(codeOf([&] { server.receive(Fetch{kGradsBody}); }) == "unexpected-message");
}

TEST_CASE("messages that no correct client sends are refused, each with its code") {
  const auto refused = [](const std::function<void(Server&)>& prepare, Message message) {
    Server server;
    prepare(server);
    auto shared = std::make_shared<Message>(std::move(message));
    return codeOf([&] { server.receive(std::move(*shared)); });
  };
  const auto fresh = [](Server&) {};
  const auto begun = [](Server& server) {
    server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
    server.work();
  };
  CHECK(refused(fresh, tensor(activationAt(0), at(Phase::train, 2, 0), 1)) == "step-gap");
  CHECK(refused(fresh, tensor(activationAt(0), at(Phase::eval, 2, 0), 0)) == "step-gap");
  CHECK(refused(fresh, tensor(gradientAt(1), at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(activationAt(1), at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(activationAt(0), at(Phase::train, 1, 0), 7)) == "bad-key");
  CHECK(refused(fresh, tensor(activationAt(0), at(Phase::train, 1, 0, 3, 8), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(activationAt(0), at(Phase::train, 1, 4), 0)) == "bad-key");
  CHECK(refused(begun, tensor(activationAt(0), at(Phase::train, 1, 1, 4, 9), 0)) == "bad-key");
  CHECK(refused(begun, tensor(gradientAt(1), at(Phase::train, 1, 1), 0)) == "bad-key");
  CHECK(refused(begun, tensor(activationAt(0), at(Phase::eval, 1, 0), 0)) == "unexpected-message");
  CHECK(refused(fresh, decisionOf(1)) == "unexpected-message");
  CHECK(refused(begun, decisionOf(1)) == "unexpected-message");
  CHECK(refused(begun, decisionOf(2)) == "step-gap");
  CHECK(refused(fresh, StepOk{1}) == "unexpected-message");
  CHECK(refused(fresh, BodyDone{}) == "unexpected-message");
  CHECK(refused(fresh, Blob{}) == "unexpected-message");
}

TEST_CASE("tensors of another server that overtake the client's messages wait for their batch") {
  Server server(0, true);
  server.trainUntilBodyDone(1);
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
  CHECK(server.work() == 0);  // Step 1 has not arrived
  server.receive(decisionOf(1));
  CHECK(server.work() == 2);  // the update, and the forward of step 2
  CHECK(server.engine.applied() == 1);
  server.receive(Fetch{kWeightsBody});  // was sent before step 2 began
  CHECK(server.work() == 1);
  CHECK(server.sentOf<Blob>() == 1);

  Server evaluating(0, true);
  evaluating.trainUntilBodyDone(1);
  evaluating.receive(tensor(activationAt(0), at(Phase::eval, 1, 0, 1, 1), 1));
  CHECK(evaluating.work() == 0);
  evaluating.receive(decisionOf(1));
  CHECK(evaluating.work() == 2);
  CHECK(evaluating.engine.batchDone());
  // The next batches follow without a message of the client.
  evaluating.receive(tensor(activationAt(0), at(Phase::eval, 2, 0, 1, 1), 1));
  evaluating.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 1));
  CHECK(evaluating.work() == 2);
}

TEST_CASE("another server cannot be ahead by more than the next batch") {
  const auto refused = [](std::uint64_t step, std::uint32_t staleness, Phase phase = Phase::train) {
    Server server(staleness, true);
    return codeOf([&] { server.receive(tensor(activationAt(0), at(phase, step, 0), 0)); });
  };
  CHECK(refused(1, 0) == "");
  CHECK(refused(2, 0) == "step-gap");
  CHECK(refused(2, 1) == "step-gap");  // step 1 is missing
  CHECK(refused(1, 0, Phase::eval) == "");
  CHECK(refused(2, 0, Phase::eval) == "step-gap");
  Server server(1, true);
  server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
  server.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 0));
  CHECK(codeOf([&] { server.receive(tensor(activationAt(0), at(Phase::train, 3, 0), 1)); }) ==
        "step-gap");
  // Repeated and wrong tensors are refused when their turn comes.
  Server repeated(0, true);
  repeated.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
  repeated.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
  CHECK(codeOf([&] { repeated.work(); }) == "bad-key");
  Server version(0, true);
  version.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 7));
  CHECK(codeOf([&] { version.work(); }) == "bad-key");
}

TEST_CASE("with direct links, a client takes only the tensors of the first cut and the last one") {
  const auto first = std::make_shared<NotingLink>(), last = std::make_shared<NotingLink>();
  EngineOptions options{&findSchedule("priority"), 4, 4};
  options.hasEdges = true;
  Coordinator client(options, {{Place{0, 1}, first}, {Place{1, 2}, last}});
  client.begin(at(Phase::train, 1, 0));
  CHECK(codeOf([&] { client.receive(0, tensor(activationAt(1), at(Phase::train, 1, 0), 0)); }) ==
        "bad-key");
  // Not before the head's output was sent to the first body.
  CHECK(codeOf([&] { client.receive(1, tensor(activationAt(2), at(Phase::train, 1, 0), 0)); }) ==
        "bad-key");
  const auto forward = client.next();
  REQUIRE(forward);
  client.complete(forward->token, bundleOf(smallPayload(1)), 0.5);
  CHECK(first->sent.size() == 1);
  CHECK(last->sent.empty());
  client.receive(1, tensor(activationAt(2), at(Phase::train, 1, 0), 0));
}

TEST_CASE("with staleness, a server refuses tensors of other steps or weights") {
  const auto refused = [](std::uint64_t step, std::uint64_t version, Phase phase = Phase::train) {
    Server server(1);
    server.receive(tensor(activationAt(0), at(Phase::train, 1, 0), 0));
    return codeOf([&] { server.receive(tensor(activationAt(0), at(phase, step, 0), version)); });
  };
  CHECK(refused(2, 0) == "");
  CHECK(refused(2, 1) == "bad-key");
  CHECK(refused(3, 1) == "step-gap");
  CHECK(refused(1, 0, Phase::eval) == "unexpected-message");
  Server gap(1);
  CHECK(codeOf([&] { gap.receive(tensor(activationAt(0), at(Phase::train, 2, 0), 0)); }) ==
        "step-gap");
}

TEST_CASE("with staleness, a server reports on a step before the previous one is decided") {
  Server server(1);
  server.trainUntilBodyDone(1);
  server.trainUntilBodyDone(2);
  CHECK(server.sentOf<BodyDone>() == 2);
  CHECK(codeOf([&] { server.receive(decisionOf(2)); }) == "step-gap");
  for (const std::uint64_t step : {1, 2}) {
    server.receive(decisionOf(step));
    CHECK(server.work() == 1);
    CHECK(server.engine.applied() == step);
  }
  CHECK(server.sentOf<StepOk>() == 2);
  CHECK(server.engine.batchDone());
}

// A client with two replicas, in a step of two micro-batches of 4 samples each.
struct ReplicaClient {
  ReplicaClient()
      : engine({&findSchedule("priority"), 2, 2},
               {{Place{}, links[0], {0, 2}}, {Place{}, links[1], {1, 2}}}) {
    engine.begin(at(Phase::train, 1, 0, 2, 8));
    work();
  }

  void work() {
    while (auto work = engine.next()) {
      Result result;
      if (work->kind == ActionKind::headForward || work->kind == ActionKind::tailStep) {
        result = bundleOf(smallPayload(static_cast<float>(work->at.i)));
      } else if (work->kind == ActionKind::decide) {
        decided = std::get<std::vector<BodyDone>>(work->input);
        result = decisionOf(1);
      }
      engine.complete(work->token, std::move(result), 0.5);
    }
  }
  void receive(std::size_t peer, Message message) {
    engine.receive(peer, std::move(message));
    work();
  }
  // The only micro-batch of a replica's share.
  static MicroBatch own() { return at(Phase::train, 1, 0, 1, 4); }
  void runBackwards() {
    for (const Flow flow : {activationAt(1), gradientAt(0)}) {
      for (const std::size_t peer : {1, 0}) receive(peer, tensor(flow, own(), 0));
    }
  }
  static BodyDone doneOf(double squareSum, bool finite = true) {
    BodyDone done;
    done.step = 1;
    done.report = {squareSum, finite};
    done.forwardSeconds = 2;
    done.reduceSeconds = squareSum;
    return done;
  }

  std::shared_ptr<NotingLink> links[2] = {std::make_shared<NotingLink>(),
                                          std::make_shared<NotingLink>()};
  Coordinator engine;
  std::vector<BodyDone> decided;
};

TEST_CASE("each replica gets its share of the micro-batches, with its own numbers") {
  ReplicaClient client;
  client.runBackwards();
  for (const std::size_t peer : {0, 1}) {
    REQUIRE(client.links[peer]->sent.size() == 2);
    for (const Message& message : client.links[peer]->sent) {
      const auto& sent = std::get<TensorMessage>(message);
      CHECK(sent.at.i == 0);
      CHECK(sent.at.batch == Division{1, 4});
      CHECK(valueOf(sent.payload) == static_cast<float>(peer));
    }
  }
  client.receive(0, ReplicaClient::doneOf(3));
  CHECK(client.decided.empty());
  client.receive(1, ReplicaClient::doneOf(3));
  REQUIRE(client.decided.size() == 1);
  CHECK(client.decided.front().forwardSeconds == 4);
  CHECK(client.decided.front().reduceSeconds == 3);
  CHECK(client.engine.applied() == 1);
  for (const auto& link : client.links) {
    CHECK(std::holds_alternative<StepDecision>(link->sent.back()));
  }
}

TEST_CASE("replicas that report different gradients end the run") {
  const auto codeFor = [](const BodyDone& first, const BodyDone& second) {
    ReplicaClient client;
    client.runBackwards();
    client.receive(0, first);
    return codeOf([&] { client.receive(1, second); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(codeFor(ReplicaClient::doneOf(3), ReplicaClient::doneOf(3)) == "");
  CHECK(codeFor(ReplicaClient::doneOf(3), ReplicaClient::doneOf(4)) == "replicas-differ");
  CHECK(codeFor(ReplicaClient::doneOf(3), ReplicaClient::doneOf(nan, false)) == "replicas-differ");
  CHECK(codeFor(ReplicaClient::doneOf(nan, false), ReplicaClient::doneOf(nan, false)) == "");
}

TEST_CASE("replicas that have other weights after an update end the run") {
  ReplicaClient client;
  client.runBackwards();
  for (const std::size_t peer : {0, 1}) client.receive(peer, ReplicaClient::doneOf(3));
  client.receive(1, StepOk{1, 7});
  const bool isSame = GENERATE(true, false);
  const std::string code = codeOf([&] { client.receive(0, StepOk{1, isSame ? 7u : 8u}); });
  CHECK(code == (isSame ? "" : "replicas-differ"));
}

TEST_CASE("a client refuses tensors outside of a replica's share") {
  ReplicaClient client;
  const auto refused = [&](const MicroBatch& where) {
    return codeOf([&] { client.engine.receive(1, tensor(activationAt(1), where, 0)); });
  };
  CHECK(refused(at(Phase::train, 1, 1, 2, 8)) == "bad-key");
  CHECK(refused(at(Phase::train, 1, 1, 1, 4)) == "bad-key");
  CHECK(refused(at(Phase::train, 1, 0, 1, 8)) == "bad-key");
  CHECK(refused(ReplicaClient::own()) == "");
  CHECK(refused(ReplicaClient::own()) == "bad-key");
}

TEST_CASE("with replicas, a server reports after the reduction") {
  const auto link = std::make_shared<NotingLink>();
  EngineOptions options{&findSchedule("priority"), 1, 1};
  options.reduces = true;
  Participant server(options, Place{}, {link});
  for (const Flow flow : {activationAt(0), gradientAt(1)}) {
    server.receive(0, tensor(flow, at(Phase::train, 1, 0, 1, 2), 0));
    const auto work = server.next();
    REQUIRE(work);
    CHECK_FALSE(server.isReportNext());
    server.complete(work->token, bundleOf(smallPayload(1)), 0.5);
  }
  CHECK(server.isReportNext());
  const auto reduction = server.next();
  REQUIRE(reduction);
  CHECK(reduction->kind == ActionKind::reduce);
  CHECK(reduction->at.step == 1);
  CHECK_FALSE(server.isReportNext());
  CHECK_FALSE(server.next());
  server.complete(reduction->token, std::monostate{}, 2);
  CHECK(server.isReportNext());
  const auto report = server.next();
  REQUIRE(report);
  CHECK(report->kind == ActionKind::report);
  server.complete(report->token, GradientReport{2, true}, 0);
  CHECK(std::get<BodyDone>(link->sent.back()).reduceSeconds == 2);
}

TEST_CASE("with staleness, a client accepts each report once and in order") {
  const auto link = std::make_shared<NotingLink>();
  Coordinator client({&findSchedule("priority"), 1, 2, false, false, 1}, {{Place{}, link}});
  for (const std::uint64_t step : {1, 2}) client.begin(at(Phase::train, step, 0, 1, 1));
  const auto work = [&] {
    while (auto next = client.next()) client.complete(next->token, bundleOf(smallPayload(1)), 0.5);
  };
  work();
  for (const std::uint64_t step : {1, 2}) {
    client.receive(0, tensor(activationAt(1), at(Phase::train, step, 0, 1, 1), 0));
  }
  work();
  CHECK(codeOf([&] { client.receive(0, doneOf(2)); }) == "bad-key");
  client.receive(0, doneOf(1));
  CHECK(codeOf([&] { client.receive(0, doneOf(1)); }) == "bad-key");
  client.receive(0, doneOf(2));
  CHECK(codeOf([&] { client.receive(0, doneOf(3)); }) == "bad-key");
}

struct Client {
  Coordinator engine{{&findSchedule("priority"), 4, 2},
                     {{Place{}, std::make_shared<NotingLink>()}}};

  int work() {
    int actions = 0;
    while (auto work = engine.next()) {
      Result result;
      if (work->kind == ActionKind::decide) {
        result = decisionOf(work->at.step);
      } else if (work->kind != ActionKind::update) {
        result = bundleOf(smallPayload(1));
      }
      engine.complete(work->token, std::move(result), 0.5);
      ++actions;
    }
    return actions;
  }
};

TEST_CASE("a client never exceeds its micro-batches in flight") {
  Client client;
  client.engine.begin(at(Phase::train, 1, 0));
  CHECK(client.work() == 2);
  client.engine.receive(0, tensor(activationAt(1), at(Phase::train, 1, 0), 0));
  CHECK(client.work() == 1);  // TailStep(0); its gradient/0 has not arrived
  client.engine.receive(0, tensor(gradientAt(0), at(Phase::train, 1, 0), 0));
  CHECK(client.work() == 2);  // HeadForward(2), HeadBackward(0)
}

TEST_CASE("in evaluation a micro-batch is in flight until its activation/1 has arrived") {
  Client client;
  client.engine.begin(at(Phase::eval, 1, 0));
  CHECK(client.work() == 2);
  client.engine.receive(0, tensor(activationAt(1), at(Phase::eval, 1, 0), 0));
  CHECK(client.work() == 2);
}

TEST_CASE("the client refuses repeated messages") {
  const auto again = [](std::size_t which) {
    Client client;
    client.engine.begin(at(Phase::train, 1, 0, 1, 1));
    client.work();
    const auto messages = [] {
      std::vector<Message> all;
      all.push_back(tensor(activationAt(1), at(Phase::train, 1, 0, 1, 1), 0));
      all.push_back(tensor(gradientAt(0), at(Phase::train, 1, 0, 1, 1), 0));
      all.push_back(doneOf(1));
      all.push_back(StepOk{1});
      return all;
    };
    std::vector<Message> first = messages();
    std::vector<Message> second = messages();
    for (std::size_t j = 0; j < first.size(); ++j) {
      client.engine.receive(0, std::move(first[j]));
      client.work();
      if (j == which) return codeOf([&] { client.engine.receive(0, std::move(second[j])); });
    }
    return std::string("none");
  };
  for (std::size_t which = 0; which < 4; ++which) {
    CAPTURE(which);
    CHECK(again(which) == "bad-key");
  }
}

TEST_CASE("messages that no correct server sends are refused, each with its code") {
  const auto refused = [](Message message) {
    Client client;
    client.engine.begin(at(Phase::train, 1, 0));
    client.work();
    auto shared = std::make_shared<Message>(std::move(message));
    return codeOf([&] { client.engine.receive(0, std::move(*shared)); });
  };
  CHECK(refused(tensor(activationAt(1), at(Phase::train, 2, 0), 0)) == "bad-key");
  CHECK(refused(tensor(activationAt(1), at(Phase::eval, 1, 0), 0)) == "bad-key");
  CHECK(refused(tensor(activationAt(1), at(Phase::train, 1, 3), 0)) == "bad-key");
  CHECK(refused(tensor(gradientAt(0), at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(tensor(activationAt(1), at(Phase::train, 1, 0), 1)) == "bad-key");
  CHECK(refused(tensor(activationAt(0), at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(doneOf(1)) == "unexpected-message");
  CHECK(refused(doneOf(2)) == "bad-key");
  CHECK(refused(StepOk{1}) == "step-gap");
  CHECK(refused(Blob{}) == "unexpected-message");
  CHECK(refused(decisionOf(1)) == "unexpected-message");
  CHECK(refused(Fetch{}) == "unexpected-message");
}

}  // namespace
}  // namespace cleave::test
