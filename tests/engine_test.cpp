// The engine's guarantees for any timing, and its reaction to messages that are repeated, late or
// out of order.
#include <catch2/catch.hpp>
#include <set>

#include "tests/noting_link.h"
#include "tests/virtual_pair.h"

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
  return {phase, step, i, microBatches, samples};
}

TensorMessage tensor(Flow flow, const MicroBatch& where, std::uint64_t weightVersion) {
  return {flow, where, weightVersion, smallPayload(0)};
}

std::string codeOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

// Runs three steps and two evaluations; returns the fingerprints of both sides.
std::pair<std::uint64_t, std::uint64_t> fingerprints(VirtualPair& pair) {
  pair.run(Phase::train, 1, 8);
  pair.run(Phase::train, 2, 8);
  pair.run(Phase::eval, 1, 8);
  pair.run(Phase::eval, 2, 3);
  pair.run(Phase::train, 3, 5);
  return {pair.fingerprint(Role::client), pair.fingerprint(Role::server)};
}

TEST_CASE("what is computed does not depend on schedule or timing") {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const Schedule& schedule : scheduleTable()) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      VirtualOptions options = optionsFor(std::string(schedule.name));
      options.jitterSeed = seed;
      VirtualPair pair(options);
      seen.insert(fingerprints(pair));
      CHECK(pair.engine(Role::client).applied() == 3);
      CHECK(pair.engine(Role::client).appliedByPeer() == 3);
      CHECK(pair.engine(Role::server).applied() == 3);
    }
  }
  CHECK(seen.size() == 1);
}

TEST_CASE("the fingerprint notices an action more or less") {
  VirtualPair three(optionsFor("priority"));
  VirtualPair two(optionsFor("priority"));
  const auto whole = fingerprints(three);
  two.run(Phase::train, 1, 8);
  two.run(Phase::train, 2, 8);
  CHECK(two.fingerprint(Role::client) != whole.first);
  CHECK(two.fingerprint(Role::server) != whole.second);
}

TEST_CASE("the client fetches the body's gradients before it decides") {
  VirtualOptions options = optionsFor("priority");
  options.fetchGradients = true;
  VirtualPair pair(options);
  pair.run(Phase::train, 1, 8);
  REQUIRE(pair.engine(Role::client).blob());
  CHECK(pair.engine(Role::client).blob()->flow == Flow::gradsBody);
  pair.run(Phase::train, 2, 8);
  CHECK(pair.engine(Role::server).applied() == 2);
}

// A server's engine without a peer, on a link that records the engine's requests.
struct Server {
  NotingLink link;
  Engine engine{{Role::server, &findSchedule("priority"), 4, 4, false}, link};

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
        result = smallPayload(1);
      }
      engine.complete(work->token, std::move(result), 0.5);
      ++actions;
    }
    return actions;
  }
  void receive(Message message) { engine.receive(std::move(message)); }
  void trainUntilBodyDone(std::uint64_t step) {
    for (const Flow flow : {Flow::activation0, Flow::gradient1}) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        receive(tensor(flow, at(Phase::train, step, i), step - 1));
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
  return {step, true, {rate}, 1, 1};
}

struct ServerWithWeights {
  NotingLink link;
  Engine engine{{Role::server, &findSchedule("priority"), 4, 4, false, true}, link};
};

TEST_CASE("initial weights are put in place once, and then acknowledged") {
  ServerWithWeights server;
  CHECK_FALSE(server.engine.weightsInPlace());
  server.engine.receive(Blob{Flow::weightsBody, {}, nullptr});
  const auto work = server.engine.next();
  REQUIRE(work);
  CHECK(work->kind == ActionKind::importBlob);
  CHECK(work->blob);
  CHECK_FALSE(server.engine.next());
  CHECK_FALSE(server.engine.weightsInPlace());
  CHECK(codeOf([&] {
          server.engine.receive(Blob{Flow::weightsBody, {}, nullptr});
        }) == "unexpected-message");
  server.engine.complete(work->token, std::monostate{}, 0.1);
  CHECK(server.engine.weightsInPlace());
  REQUIRE(server.link.sent.size() == 1);
  CHECK(std::get<StepOk>(server.link.sent[0]).step == 0);
  CHECK(codeOf([&] {
          server.engine.receive(Blob{Flow::weightsBody, {}, nullptr});
        }) == "unexpected-message");
}

TEST_CASE("nothing comes before the initial weights, and they come to no run that has none") {
  ServerWithWeights server;
  CHECK(codeOf([&] {
          server.engine.receive(tensor(Flow::activation0, at(Phase::train, 1, 0), 0));
        }) == "unexpected-message");
  CHECK(codeOf([&] { server.engine.receive(Fetch{Flow::weightsBody}); }) == "unexpected-message");
  CHECK(codeOf([&] {
          server.engine.receive(Blob{Flow::gradsBody, {}, nullptr});
        }) == "unexpected-message");
  Server without;
  CHECK(codeOf([&] {
          without.receive(Blob{Flow::weightsBody, {}, nullptr});
        }) == "unexpected-message");
}

TEST_CASE("a client that sends initial weights waits for StepOk 0") {
  NotingLink link;
  Engine engine({Role::client, &findSchedule("priority"), 4, 4, false, true}, link);
  CHECK_FALSE(engine.weightsInPlace());
  engine.sendWeights(std::make_shared<const std::vector<std::byte>>(3));
  REQUIRE(link.sent.size() == 1);
  CHECK(std::get<Blob>(link.sent[0]).bytes.size() == 3);
  engine.receive(StepOk{0});
  CHECK(engine.weightsInPlace());
  CHECK(codeOf([&] { engine.receive(StepOk{0}); }) == "bad-key");
}

TEST_CASE("what comes to the server again is refused, of the running step and of a finished one") {
  {
    Server server;
    server.receive(tensor(Flow::activation0, at(Phase::train, 1, 0), 0));
    server.work();
    CHECK(codeOf([&] { server.receive(tensor(Flow::activation0, at(Phase::train, 1, 0), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.trainUntilBodyDone(1);
    CHECK(codeOf([&] { server.receive(tensor(Flow::gradient1, at(Phase::train, 1, 0), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.trainUntilBodyDone(1);
    server.receive(decisionOf(1));
    server.work();
    CHECK(codeOf([&] { server.receive(tensor(Flow::gradient1, at(Phase::train, 1, 3), 0)); }) ==
          "bad-key");
  }
  {
    Server server;
    server.receive(tensor(Flow::activation0, at(Phase::eval, 1, 0, 1, 1), 0));
    server.work();
    CHECK(codeOf([&] {
            server.receive(tensor(Flow::activation0, at(Phase::eval, 1, 0, 1, 1), 0));
          }) == "bad-key");
  }
}

TEST_CASE("Step is applied once, and Step again is refused") {
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

TEST_CASE("a skipped step advances too") {
  Server server;
  server.trainUntilBodyDone(1);
  StepDecision skip = decisionOf(1);
  skip.apply = false;
  server.receive(skip);
  server.work();
  CHECK(server.engine.applied() == 1);
  server.receive(tensor(Flow::activation0, at(Phase::train, 2, 0), 1));
  CHECK(server.work() == 1);
}

TEST_CASE("tensors that follow a Step wait for its update") {
  Server server;
  server.trainUntilBodyDone(1);
  server.receive(decisionOf(1));
  server.receive(tensor(Flow::activation0, at(Phase::train, 2, 0), 1));
  server.receive(Fetch{Flow::weightsBody});  // deferred; refused once step 2 has begun
  const auto first = server.engine.next();
  REQUIRE(first);
  CHECK(first->kind == ActionKind::update);
  CHECK_FALSE(server.engine.next());
}

TEST_CASE("a batch is done before the next one, which waited for its update, begins") {
  Server server;
  server.trainUntilBodyDone(1);
  server.receive(decisionOf(1));
  server.receive(tensor(Flow::activation0, at(Phase::train, 2, 0), 1));
  const auto update = server.engine.next();
  REQUIRE(update);
  server.engine.complete(update->token, std::monostate{}, 0.5);
  CHECK(server.engine.batchDone());
  CHECK(server.engine.batch()->step == 1);
  REQUIRE(server.engine.next());
  CHECK_FALSE(server.engine.batchDone());
  CHECK(server.engine.batch()->step == 2);
}

TEST_CASE("a Fetch behind a Step copies the weights after its update and before the next forward") {
  // The next step's first tensor arrives before the update, during it, or right after it.
  for (const int when : {0, 1, 2}) {
    CAPTURE(when);
    Server server;
    const auto nextStepBegins = [&](int moment) {
      if (moment == when) {
        server.receive(tensor(Flow::activation0, at(Phase::train, 2, 0), 1));
      }
    };
    server.trainUntilBodyDone(1);
    server.receive(decisionOf(1));
    server.receive(Fetch{Flow::weightsBody});
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

TEST_CASE("a Step numbered 0 is refused") {
  Server server;
  CHECK(codeOf([&] { server.receive(decisionOf(0)); }) == "step-gap");
}

TEST_CASE("weights are fetched between batches only") {
  Server server;
  server.receive(Fetch{Flow::weightsBody});
  server.work();
  CHECK(server.sentOf<Blob>() == 1);
  server.receive(tensor(Flow::activation0, at(Phase::train, 1, 0), 0));
  CHECK(codeOf([&] { server.receive(Fetch{Flow::weightsBody}); }) == "unexpected-message");
  CHECK(codeOf([&] { server.receive(Fetch{Flow::gradsBody}); }) == "unexpected-message");
}

TEST_CASE("what no correct client sends is refused, each with its code") {
  const auto refused = [](const std::function<void(Server&)>& prepare, Message message) {
    Server server;
    prepare(server);
    auto shared = std::make_shared<Message>(std::move(message));
    return codeOf([&] { server.receive(std::move(*shared)); });
  };
  const auto fresh = [](Server&) {};
  const auto begun = [](Server& server) {
    server.receive(tensor(Flow::activation0, at(Phase::train, 1, 0), 0));
    server.work();
  };
  CHECK(refused(fresh, tensor(Flow::activation0, at(Phase::train, 2, 0), 1)) == "step-gap");
  CHECK(refused(fresh, tensor(Flow::activation0, at(Phase::eval, 2, 0), 0)) == "step-gap");
  CHECK(refused(fresh, tensor(Flow::gradient1, at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(Flow::activation1, at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(Flow::activation0, at(Phase::train, 1, 0), 7)) == "bad-key");
  CHECK(refused(fresh, tensor(Flow::activation0, at(Phase::train, 1, 0, 3, 8), 0)) == "bad-key");
  CHECK(refused(fresh, tensor(Flow::activation0, at(Phase::train, 1, 4), 0)) == "bad-key");
  CHECK(refused(begun, tensor(Flow::activation0, at(Phase::train, 1, 1, 4, 9), 0)) == "bad-key");
  CHECK(refused(begun, tensor(Flow::gradient1, at(Phase::train, 1, 1), 0)) == "bad-key");
  CHECK(refused(begun, tensor(Flow::activation0, at(Phase::eval, 1, 0), 0)) ==
        "unexpected-message");
  CHECK(refused(fresh, decisionOf(1)) == "unexpected-message");
  CHECK(refused(begun, decisionOf(1)) == "unexpected-message");
  CHECK(refused(begun, decisionOf(2)) == "step-gap");
  CHECK(refused(fresh, StepOk{1}) == "unexpected-message");
  CHECK(refused(fresh, BodyDone{}) == "unexpected-message");
  CHECK(refused(fresh, Blob{}) == "unexpected-message");
}

struct Client {
  NotingLink link;
  Engine engine{{Role::client, &findSchedule("priority"), 4, 2, false}, link};

  int work() {
    int actions = 0;
    while (auto work = engine.next()) {
      Result result;
      if (work->kind == ActionKind::decide) {
        result = decisionOf(work->at.step);
      } else if (work->kind != ActionKind::update) {
        result = smallPayload(1);
      }
      engine.complete(work->token, std::move(result), 0.5);
      ++actions;
    }
    return actions;
  }
};

TEST_CASE("a client keeps to its micro-batches in flight") {
  Client client;
  client.engine.begin(at(Phase::train, 1, 0));
  CHECK(client.work() == 2);
  client.engine.receive(tensor(Flow::activation1, at(Phase::train, 1, 0), 0));
  CHECK(client.work() == 1);  // TailStep(0); its gradient/0 has not arrived
  client.engine.receive(tensor(Flow::gradient0, at(Phase::train, 1, 0), 0));
  CHECK(client.work() == 2);  // HeadForward(2), HeadBackward(0)
}

TEST_CASE("in evaluation a micro-batch is in flight until its activation/1 has come") {
  Client client;
  client.engine.begin(at(Phase::eval, 1, 0));
  CHECK(client.work() == 2);
  client.engine.receive(tensor(Flow::activation1, at(Phase::eval, 1, 0), 0));
  CHECK(client.work() == 2);
}

TEST_CASE("what comes to the client again is refused") {
  const auto again = [](std::size_t which) {
    Client client;
    client.engine.begin(at(Phase::train, 1, 0, 1, 1));
    client.work();
    const auto messages = [] {
      std::vector<Message> all;
      all.push_back(tensor(Flow::activation1, at(Phase::train, 1, 0, 1, 1), 0));
      all.push_back(tensor(Flow::gradient0, at(Phase::train, 1, 0, 1, 1), 0));
      all.push_back(BodyDone{1, {}, 0, 0, 0, 0});
      all.push_back(StepOk{1});
      return all;
    };
    std::vector<Message> first = messages();
    std::vector<Message> second = messages();
    for (std::size_t j = 0; j < first.size(); ++j) {
      client.engine.receive(std::move(first[j]));
      client.work();
      if (j == which) return codeOf([&] { client.engine.receive(std::move(second[j])); });
    }
    return std::string("none");
  };
  for (std::size_t which = 0; which < 4; ++which) {
    CAPTURE(which);
    CHECK(again(which) == "bad-key");
  }
}

TEST_CASE("what no correct server sends is refused, each with its code") {
  const auto refused = [](Message message) {
    Client client;
    client.engine.begin(at(Phase::train, 1, 0));
    client.work();
    auto shared = std::make_shared<Message>(std::move(message));
    return codeOf([&] { client.engine.receive(std::move(*shared)); });
  };
  CHECK(refused(tensor(Flow::activation1, at(Phase::train, 2, 0), 0)) == "bad-key");
  CHECK(refused(tensor(Flow::activation1, at(Phase::eval, 1, 0), 0)) == "bad-key");
  CHECK(refused(tensor(Flow::activation1, at(Phase::train, 1, 3), 0)) == "bad-key");
  CHECK(refused(tensor(Flow::gradient0, at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(tensor(Flow::activation0, at(Phase::train, 1, 0), 0)) == "bad-key");
  CHECK(refused(BodyDone{1, {}, 0, 0, 0, 0}) == "unexpected-message");
  CHECK(refused(BodyDone{2, {}, 0, 0, 0, 0}) == "bad-key");
  CHECK(refused(StepOk{1}) == "step-gap");
  CHECK(refused(Blob{}) == "unexpected-message");
  CHECK(refused(decisionOf(1)) == "unexpected-message");
  CHECK(refused(Fetch{}) == "unexpected-message");
}

}  // namespace
}  // namespace cleave::test
