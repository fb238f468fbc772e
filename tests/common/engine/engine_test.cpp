// The engine's guarantees for any timing, and its responses to messages that are repeated, late or
// out of order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <limits>
#include <map>

#include "tests/support/models/noting_link.h"
#include "tests/support/models/virtual_run.h"

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

StepDecision decisionOf(std::uint64_t step, double rate = 0.1) {
  return {step, true, {rate}, 1, 1, false, {}};
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

// Trains the whole model without engines, one micro-batch after the other. The gradients of a head
// or tail are added per member of the cohort, and then in the order of the members; those of a body
// per replica, and then in the order of the ranks.
class WholeModel {
 public:
  explicit WholeModel(const VirtualOptions& options)
      : options_(options),
        parts_(tinyParts(options.bodies)),
        versions_{parts_},
        outputs_(options.members, 0) {}

  void run(Phase phase, std::uint64_t step, std::uint32_t samples) {
    MicroBatch at{phase, step, 0, divide(options_, step, samples)};
    // The weights with which the step is computed.
    const bool isStale = phase == Phase::train && options_.staleness > 0;
    std::vector<TinyPart> used = isStale ? versions_.at(versionOf(step)) : parts_;
    std::vector<std::vector<float>> gradients;
    for (std::size_t p = 0; p < used.size(); ++p) {
      gradients.emplace_back(replicasOf(p) * membersOf(p), 0.0F);
    }
    for (at.i = 0; at.i < at.batch.count; ++at.i) {
      const std::uint32_t member = at.batch.memberOf(at.i);
      std::vector<float> inputs;
      float x = tinyInput(at);
      for (const TinyPart& part : used) {
        inputs.push_back(x);
        x = part.forward(x);
      }
      outputs_[member] += x;
      if (phase == Phase::eval) continue;
      float gradient = tinyLossGradient(x);
      for (std::size_t p = used.size(); p-- > 0;) {
        float& own = gradients[p][at.i % replicasOf(p) * membersOf(p) + member % membersOf(p)];
        used[p].gradient = own;
        gradient = used[p].backward(inputs[p], gradient);
        own = used[p].gradient;
      }
    }
    if (phase == Phase::eval) return;
    std::vector<double> squares;
    for (std::size_t p = 0; p < used.size(); ++p) {
      for (std::size_t r = 0; r < replicasOf(p); ++r) {
        const float* const ofMembers = &gradients[p][r * membersOf(p)];
        float sum = ofMembers[0];
        for (std::size_t m = 1; m < membersOf(p); ++m) sum += ofMembers[m];
        parts_[p].gradient = r == 0 ? sum : parts_[p].gradient + sum;
      }
      squares.push_back(squareOf(parts_[p].gradient));
    }
    bodyGradients_.push_back(parts_[1].gradient);
    const StepDecision decision = tinyDecision(step, squares);
    for (TinyPart& part : parts_) part.update(decision);
    versions_.push_back(parts_);
  }

  // The gradient of the first body in each step. Weights differ less: an update may round away the
  // last bits.
  const std::vector<float>& bodyGradients() const { return bodyGradients_; }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const TinyPart& part : parts_) all.push_back(part.weight);
    float outputs = 0;
    for (const float each : outputs_) outputs += each;
    all.push_back(outputs);
    return all;
  }

 private:
  bool isBody(std::size_t part) const { return part > 0 && part + 1 < parts_.size(); }
  std::size_t replicasOf(std::size_t part) const {
    return isBody(part) ? options_.replicasOf(part - 1) : 1;
  }
  std::size_t membersOf(std::size_t part) const {
    return isBody(part) && !options_.addsByMember() ? 1 : options_.members;
  }
  // Not versionFor(), so that the tests detect an error in it.
  std::size_t versionOf(std::uint64_t step) const {
    const auto version =
        static_cast<std::int64_t>(step) - 1 - static_cast<std::int64_t>(options_.staleness);
    return static_cast<std::size_t>(std::max<std::int64_t>(0, version));
  }

  const VirtualOptions options_;
  std::vector<TinyPart> parts_;
  std::vector<float> bodyGradients_;
  std::vector<std::vector<TinyPart>> versions_;  // the weights after each update
  std::vector<float> outputs_;                   // sums of the tail's outputs, by member
};

std::vector<float> trainedWhole(std::size_t bodies) {
  VirtualOptions options = optionsFor("priority");
  options.bodies = bodies;
  WholeModel whole(options);
  whole.run(Phase::train, 1, 8);
  whole.run(Phase::train, 2, 8);
  whole.run(Phase::eval, 1, 8);
  whole.run(Phase::eval, 2, 3);
  whole.run(Phase::train, 3, 5);
  return whole.weights();
}

#ifdef CLEAVE_SANITIZED
constexpr std::uint64_t kTimings = 4;
#else
constexpr std::uint64_t kTimings = 20;
#endif

TEST_CASE("one to four bodies in a row compute the same as the whole model, for any timing") {
  for (const std::size_t bodies : {1, 2, 3, 4}) {
    const std::vector<float> whole = trainedWhole(bodies);
    for (const Schedule& schedule : scheduleTable()) {
      for (std::uint64_t seed = 0; seed < 3 * kTimings; ++seed) {
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

Trained trainedReplicasWhole(const VirtualOptions& options) {
  WholeModel whole(options);
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
        VirtualOptions options = optionsFor("priority", microBatches);
        options.replicas = replicas;
        options.staleness = staleness;
        options.reduceSeconds = 0.7;
        const Trained whole = trainedReplicasWhole(options);
        for (const Schedule& schedule : scheduleTable()) {
          if (staleness > 0 && schedule.isStrict) continue;
          options.schedule = &schedule;
          for (std::uint64_t seed = 0; seed < kTimings / 2; ++seed) {
            CAPTURE(replicas, microBatches, staleness, schedule.name, seed);
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
    VirtualOptions options = optionsFor("priority", 8);
    options.replicas = replicas;
    WholeModel whole(options);
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

TEST_CASE("the shares of a batch have each micro-batch once") {
  for (std::uint32_t microBatches = 1; microBatches <= 12; ++microBatches) {
    for (std::uint32_t first = 0; first < 3; ++first) {
      for (std::uint32_t count = 1; count <= 5; ++count) {
        std::vector<int> owners(first + microBatches);
        for (std::uint32_t rank = 0; rank < count; ++rank) {
          const Share share = Replica{rank, count}.shareOf({first, 1, microBatches});
          for (std::uint32_t position = 0; position < share.count; ++position) {
            const std::uint32_t i = share.at(position);
            CAPTURE(microBatches, first, count, rank, position);
            REQUIRE(Replica{rank, count}.computes(i));
            REQUIRE((share.has(i) && share.position(i) == position));
            ++owners.at(i);
          }
          REQUIRE_FALSE(share.has(share.at(share.count)));
        }
        for (std::uint32_t i = 0; i < owners.size(); ++i) REQUIRE(owners[i] == (i < first ? 0 : 1));
      }
    }
  }
}

TEST_CASE("the micro-batches of a cohort's batch each have the samples of one member") {
  const Division batch = Division::ofMembers({5, 0, 1, 4}, 2);
  CHECK(batch.count == 6);
  CHECK(batch.samples == 10);
  const std::uint32_t members[] = {0, 0, 0, 2, 3, 3}, sizes[] = {2, 2, 1, 1, 2, 2};
  std::uint32_t offset = 0;
  for (std::uint32_t i = 0; i < batch.count; ++i) {
    CAPTURE(i);
    CHECK(batch.memberOf(i) == members[i]);
    CHECK(batch.size(i) == sizes[i]);
    CHECK(batch.offset(i) == offset);
    offset += sizes[i];
  }
  CHECK(batch.shareOfMember(1).count == 0);
  CHECK(batch.samplesOf(batch.shareOfMember(0)) == 5);
  CHECK(batch.samplesOf(Replica{1, 2}.shareOf(batch.shareOfMember(3))) == 2);
  CHECK(batch != Division{6, 10});
}

TEST_CASE("the comparison detects a missing or extra step") {
  WholeModel two(optionsFor("priority"));
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
  options.stepFetch = [](std::uint64_t) { return kGradsBody; };
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

TEST_CASE("the client fetches the weights that some steps were computed with") {
  VirtualOptions options = optionsFor("priority");
  std::vector<bool> fetched;
  options.stepFetch = [](std::uint64_t step) -> std::optional<Flow> {
    if (step % 2 == 1) return std::nullopt;
    return kWeightsBody;
  };
  VirtualRun run(options), without(optionsFor("priority"));
  for (std::uint64_t step = 1; step <= 4; ++step) {
    run.run(Phase::train, step, 8);
    without.run(Phase::train, step, 8);
    fetched.push_back(run.client().blob().has_value());
  }
  CHECK(fetched == std::vector<bool>{false, true, false, true});
  CHECK((run.weights() == without.weights()));
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
  VirtualOptions options = optionsFor("priority", microBatches);
  options.bodies = bodies;
  options.staleness = staleness;
  WholeModel whole(options);
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
          for (std::uint64_t seed = 0; seed < kTimings; ++seed) {
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
  options.stepFetch = [](std::uint64_t) { return kGradsBody; };
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

// ---- Cohorts ----

constexpr std::uint32_t kEvaluated[] = {5, 3};  // samples of evaluation batches

// The weights and the body's gradients, after an evaluation too.
Trained trainedTogether(const VirtualOptions& options) {
  VirtualRun run(options);
  run.train(1, kStaleSteps);
  std::uint64_t batch = 0;
  for (const std::uint32_t samples : kEvaluated) run.run(Phase::eval, ++batch, samples);
  for (std::uint32_t m = 0; m < options.members; ++m) {
    CHECK(run.client(m).applied() == kStaleSteps.size());
    CHECK(run.client(m).appliedByPeers() == kStaleSteps.size());
  }
  return {run.weights(), run.bodyGradients()};
}

Trained trainedTogetherWhole(const VirtualOptions& options) {
  WholeModel whole(options);
  std::uint64_t step = 0;
  for (const std::uint32_t samples : kStaleSteps) whole.run(Phase::train, ++step, samples);
  std::uint64_t batch = 0;
  for (const std::uint32_t samples : kEvaluated) whole.run(Phase::eval, ++batch, samples);
  return {whole.weights(), whole.bodyGradients()};
}

TEST_CASE("one to four members, one to three bodies and one or two replicas equal one model") {
  bool differs = false;  // the orders
  for (const std::uint32_t members : {1, 2, 3, 4}) {
    for (const std::size_t bodies : {1, 2, 3}) {
      for (const std::uint32_t replicas : {1, 2}) {
        VirtualOptions options = optionsFor("priority");
        options.members = members;
        options.bodies = bodies;
        options.replicas = replicas;
        options.reduceSeconds = 0.7;
        const Trained byMember = trainedTogetherWhole(options);
        options.isByMember = false;
        const Trained global = trainedTogetherWhole(options);
        differs |= byMember != global;
        for (const Schedule& schedule : scheduleTable()) {
          options.schedule = &schedule;
          for (std::uint64_t seed = 0; seed < kTimings; ++seed) {
            CAPTURE(members, bodies, replicas, schedule.name, seed);
            options.jitterSeed = seed;
            options.hasEdges = replicas == 1 && seed % 4 == 1;
            options.isByMember = seed % 2 == 0;
            REQUIRE((trainedTogether(options) == (options.isByMember ? byMember : global)));
          }
        }
      }
    }
  }
  CHECK(differs);
}

TEST_CASE("bodies with different numbers of replicas compute the same as the whole model") {
  for (const std::vector<std::uint32_t>& replicas :
       std::vector<std::vector<std::uint32_t>>{{2, 1}, {1, 3}, {2, 3}, {2, 1, 1}, {3, 1, 2}}) {
    for (const std::uint32_t staleness : {0, 2}) {
      VirtualOptions options = optionsFor("priority", 7);
      options.bodies = replicas.size();
      options.bodyReplicas = replicas;
      options.staleness = staleness;
      options.reduceSeconds = 0.7;
      const Trained whole = trainedTogetherWhole(options);
      for (const std::string name : {"priority", "gpipe", "zb"}) {
        options.schedule = &findSchedule(name);
        if (staleness > 0 && !supportsStaleness(*options.schedule, 2)) continue;
        for (std::uint64_t seed = 0; seed < kTimings; ++seed) {
          CAPTURE(replicas, staleness, name, seed);
          options.jitterSeed = seed;
          REQUIRE((trainedTogether(options) == whole));
        }
      }
    }
  }
}

TEST_CASE("a cohort's steps overlap with staleness, and its head may be frozen") {
  for (const std::uint32_t members : {2, 3, 4}) {
    for (const std::uint32_t staleness : {1, 2}) {
      VirtualOptions options = optionsFor("priority");
      options.members = members;
      options.bodies = 2;
      options.replicas = 2;
      options.staleness = staleness;
      const Trained whole = trainedTogetherWhole(options);
      for (std::uint64_t seed = 0; seed < kTimings; ++seed) {
        CAPTURE(members, staleness, seed);
        options.jitterSeed = seed;
        REQUIRE((trainedTogether(options) == whole));
      }
      options.headIsFrozen = true;
      const Trained frozen = trainedTogether(options);
      options.jitterSeed = 3;
      CHECK((trainedTogether(options) == frozen));
    }
  }
}

TEST_CASE("each number of members adds the gradients of the head in another order") {
  VirtualOptions options = optionsFor("priority");
  std::vector<float> last;
  for (const std::uint32_t members : {2, 3, 4}) {
    options.members = members;
    const std::vector<float> weights = trainedTogetherWhole(options).first;
    CHECK(weights != last);
    last = weights;
  }
}

// The first server of two members, in a step with one micro-batch of each, and the second member.
struct Cohort {
  static EngineOptions options() {
    EngineOptions options{&findSchedule("priority"), 2, 2};
    options.sumsMembers = true;
    options.planned = [](const MicroBatch&) { return Division::ofMembers({2, 2}, 2); };
    return options;
  }
  static MicroBatch of(std::uint32_t member) {
    return {Phase::train, 1, member, Division::ofMembers({2, 2}, 2)};
  }
  static EngineOptions second() {
    EngineOptions options{&findSchedule("priority"), 2, 2};
    options.member = 1;
    return options;
  }

  std::shared_ptr<NotingLink> links[2] = {std::make_shared<NotingLink>(),
                                          std::make_shared<NotingLink>()};
  Participant server{options(), Place{}, {links[0], links[1]}};
  std::shared_ptr<NotingLink> up = std::make_shared<NotingLink>();
  Coordinator member{second(), {{Place{}, up}}};
};

TEST_CASE("a server refuses what one member sends in the place of another") {
  const auto refused = [](std::size_t peer, Message message) {
    Cohort cohort;
    return codeOf([&] {
      cohort.server.receive(peer, std::move(message));
      (void)cohort.server.next();
    });
  };
  CHECK(refused(0, tensor(activationAt(0), Cohort::of(0), 0)) == "");
  CHECK(refused(0, tensor(activationAt(0), Cohort::of(1), 0)) == "bad-key");
  CHECK(refused(1, tensor(activationAt(0), at(Phase::train, 1, 1, 2, 4), 0)) == "bad-key");
  CHECK(refused(1, StepDecision{1, true, {0.1}, 1, 1, false, {}}) == "unexpected-message");
}

TEST_CASE("a server computes for one member while another has not sent its tensors") {
  for (const bool isByMember : {true, false}) {
    CAPTURE(isByMember);
    EngineOptions options = Cohort::options();
    options.byMember = isByMember;
    const auto down = std::make_shared<NotingLink>();
    Participant server(options, Place{}, {std::make_shared<NotingLink>(), down});
    const auto runNext = [&] {
      const auto work = server.next();
      if (!work) return std::string("nothing");
      Result result = work->kind == ActionKind::report ? Result(GradientReport{2, true})
                                                       : bundleOf(smallPayload(1));
      server.complete(work->token, std::move(result), 0.5);
      return std::string(actionName(work->kind)) + (work->isFirst ? " first" : "");
    };
    server.receive(1, tensor(activationAt(0), Cohort::of(1), 0));
    if (isByMember) {
      CHECK(runNext() == "BodyForward first");
      server.receive(1, tensor(gradientAt(1), Cohort::of(1), 0));
      CHECK(runNext() == "BodyBackward first");
      CHECK(down->sent.size() == 2);
    }
    CHECK(runNext() == "nothing");
    server.receive(0, tensor(activationAt(0), Cohort::of(0), 0));
    CHECK(runNext() == (isByMember ? "BodyForward" : "BodyForward first"));
    if (!isByMember) continue;
    CHECK(runNext() == "nothing");
    server.receive(0, tensor(gradientAt(1), Cohort::of(0), 0));
    CHECK(runNext() == "BodyBackward");
    CHECK_THAT(runNext(), Catch::StartsWith("Report"));
  }
}

TEST_CASE("no member fills a server with tensors of later batches") {
  const auto activation = [](std::uint64_t step, Phase phase, std::uint64_t version) {
    MicroBatch at = Cohort::of(1);
    at.phase = phase;
    at.step = step;
    return tensor(activationAt(0), at, version);
  };
  const auto refused = [&](std::vector<Message> messages) {
    Cohort cohort;
    return codeOf([&] {
      for (Message& message : messages) cohort.server.receive(1, std::move(message));
    });
  };
  const auto both = [&](Message first, Message second) {
    std::vector<Message> messages;
    messages.push_back(std::move(first));
    messages.push_back(std::move(second));
    return refused(std::move(messages));
  };
  CHECK(both(activation(1, Phase::train, 0), activation(2, Phase::train, 1)) == "step-gap");
  CHECK(both(activation(1, Phase::eval, 0), activation(2, Phase::eval, 0)) == "too-many-in-flight");
  CHECK(both(activation(1, Phase::train, 0), activation(1, Phase::eval, 1)) == "bad-key");
  CHECK(both(activation(1, Phase::train, 0), activation(1, Phase::eval, 0)) == "");
}

TEST_CASE("a server sums the parts of all members in their order, once each") {
  Cohort cohort;
  const auto part = [](std::size_t bytes) {
    auto owner = std::make_shared<std::vector<std::byte>>(bytes);
    return Blob{kPartsClient, {owner->data(), bytes}, owner};
  };
  cohort.server.receive(1, part(2));
  CHECK(codeOf([&] { cohort.server.receive(1, part(2)); }) == "unexpected-message");
  CHECK_FALSE(cohort.server.next());
  cohort.server.receive(0, part(1));
  const auto work = cohort.server.next();
  REQUIRE(work);
  CHECK(work->kind == ActionKind::sum);
  const auto& parts = std::get<std::vector<Blob>>(work->input);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].bytes.size() == 1);
  CHECK(parts[1].bytes.size() == 2);
  cohort.server.complete(work->token, std::make_shared<const std::vector<std::byte>>(3), 0);
  for (const auto& link : cohort.links) {
    REQUIRE(link->sent.size() == 1);
    CHECK(std::get<Blob>(link->sent.front()).flow == kSumsClient);
  }
  Participant alone({&findSchedule("priority"), 2, 2}, Place{}, {cohort.links[0]});
  CHECK(codeOf([&] { alone.receive(0, part(1)); }) == "unexpected-message");
}

TEST_CASE("a member that obeys refuses a Step before its part, and a sum that it did not request") {
  Cohort cohort;
  cohort.member.begin(Cohort::of(0));
  CHECK(codeOf([&] {
          cohort.member.receive(0, Blob{kSumsClient, {}, nullptr});
        }) == "unexpected-message");
  CHECK(codeOf([&] { cohort.member.receive(0, decisionOf(1)); }) == "step-gap");
  Coordinator first({&findSchedule("priority"), 2, 2}, {{Place{}, cohort.up}});
  first.begin(at(Phase::train, 1, 0, 2, 4));
  CHECK(codeOf([&] { first.receive(0, decisionOf(1)); }) == "unexpected-message");
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

TEST_CASE("a body continues when all members have asked for the same step") {
  const auto first = std::make_shared<NotingLink>(), second = std::make_shared<NotingLink>();
  Participant server({&findSchedule("priority"), 4, 4, false, true}, Place{}, {first, second});
  server.receive(1, Resume{7});
  CHECK_FALSE(server.next());
  CHECK(codeOf([&] { server.receive(1, Resume{7}); }) == "unexpected-message");
  CHECK(codeOf([&] { server.receive(0, Resume{6}); }) == "members-differ");

  Participant other({&findSchedule("priority"), 4, 4, false, true}, Place{}, {first, second});
  other.receive(1, Resume{7});
  other.receive(0, Resume{7});
  const auto work = other.next();
  REQUIRE(work);
  CHECK(work->kind == ActionKind::restore);
  other.complete(work->token, EngineState{7, 3}, 0.1);
  for (const auto& link : {first, second}) {
    REQUIRE(link->sent.size() == 1);
    CHECK(std::get<StepOk>(link->sent[0]).step == 7);
  }
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
    "a Fetch before a Step copies gradients or weights before the update, even if both have "
    "arrived") {
  for (const Flow flow : {kGradsBody, kWeightsBody}) {
    Server server;
    server.trainUntilBodyDone(1);
    server.receive(Fetch{flow});
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
}

TEST_CASE("a Step numbered 0 is refused") {
  Server server;
  CHECK(codeOf([&] { server.receive(decisionOf(0)); }) == "step-gap");
}

TEST_CASE("weights are not fetched while a batch is computed") {
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
  static MicroBatch of(std::uint32_t rank) { return at(Phase::train, 1, rank, 2, 8); }
  void runBackwards() {
    for (const Flow flow : {activationAt(1), gradientAt(0)}) {
      for (const std::uint32_t peer : {1, 0}) receive(peer, tensor(flow, of(peer), 0));
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

TEST_CASE("each replica gets its share of the micro-batches") {
  ReplicaClient client;
  client.runBackwards();
  for (const std::uint32_t peer : {0, 1}) {
    REQUIRE(client.links[peer]->sent.size() == 2);
    for (const Message& message : client.links[peer]->sent) {
      const auto& sent = std::get<TensorMessage>(message);
      CHECK(sent.at.i == peer);
      CHECK(sent.at.batch == Division{2, 8});
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
  CHECK(refused(at(Phase::train, 1, 0, 2, 8)) == "bad-key");
  CHECK(refused(at(Phase::train, 1, 2, 2, 8)) == "bad-key");
  CHECK(refused(at(Phase::train, 1, 0, 1, 4)) == "bad-key");
  CHECK(refused(at(Phase::train, 1, 1, 1, 8)) == "bad-key");
  CHECK(refused(ReplicaClient::of(1)) == "");
  CHECK(refused(ReplicaClient::of(1)) == "bad-key");
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
  explicit Client(StepFetch stepFetch = nullptr)
      : engine({&findSchedule("priority"), 4, 2}, {{Place{}, std::make_shared<NotingLink>()}},
               std::move(stepFetch)) {}

  Coordinator engine;

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

TEST_CASE("weights that were requested between batches are not those of a step") {
  const std::uint64_t due = 2;
  Client client(
      [&](std::uint64_t step) { return step == due ? std::optional(kWeightsBody) : std::nullopt; });
  const auto train = [&](std::uint64_t step) {
    client.engine.begin(at(Phase::train, step, 0, 1, 1));
    client.work();
    client.engine.receive(0, tensor(activationAt(1), at(Phase::train, step, 0, 1, 1), step - 1));
    client.work();
    client.engine.receive(0, tensor(gradientAt(0), at(Phase::train, step, 0, 1, 1), step - 1));
    client.work();
    client.engine.receive(0, doneOf(step));
  };
  client.engine.fetch(kWeightsBody);
  train(1);
  const auto decide = client.engine.next();
  REQUIRE(decide);
  client.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
  client.engine.complete(decide->token, decisionOf(1), 0.5);
  client.work();
  client.engine.receive(0, StepOk{1});
  train(2);
  CHECK_FALSE(client.engine.next());  // the weights of step 2 have not arrived
  client.engine.receive(0, Blob{kWeightsBody, {}, nullptr});
  const auto second = client.engine.next();
  REQUIRE(second);
  CHECK(second->kind == ActionKind::decide);
  CHECK(client.engine.blob());
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
