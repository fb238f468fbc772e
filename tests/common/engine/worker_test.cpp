// A worker on an asynchronous device, which finishes an action some time after the action's
// function has returned.
#include "common/engine/worker.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>

#include "tests/support/error_code.h"
#include "tests/support/models/noting_link.h"
#include "tests/support/models/virtual_run.h"

namespace cleave::test {
namespace {

// A device that finishes an action only when finishOne() is called. Each action reports two
// seconds.
class SlowQueue : public DeviceQueue {
 public:
  void begin() override { ++begun; }
  Seconds end(std::function<void()> done) override {
    waiting.push_back(std::move(done));
    return [] { return 2.0; };
  }
  void drain() override {
    while (!waiting.empty()) finishOne();
  }
  void finishOne() {
    auto done = std::move(waiting.front());
    waiting.erase(waiting.begin());
    std::thread(std::move(done)).join();
  }
  int begun = 0;
  std::vector<std::function<void()>> waiting;
};

struct SlowServer {
  explicit SlowServer(bool isSlow = true) {
    ActionTable table;
    for (const ActionKind kind : {ActionKind::bodyForward, ActionKind::bodyBackward}) {
      table[static_cast<std::size_t>(kind)] = [](Work) -> Result {
        return bundleOf(smallPayload(1));
      };
    }
    table[static_cast<std::size_t>(ActionKind::report)] = [](Work) -> Result {
      return GradientReport{2, true};
    };
    table[static_cast<std::size_t>(ActionKind::update)] = [](Work) -> Result { return {}; };
    worker = std::make_unique<EngineWorker>(
        std::make_unique<Participant>(EngineOptions{&findSchedule("priority"), 2, 2}, Place{},
                                      std::vector<std::shared_ptr<EngineLink>>{link}),
        mailbox, table, [this] { ++finished; },
        [this](std::exception_ptr error) {
          failed = true;
          code = errorCode([&] { std::rethrow_exception(error); });
        },
        isSlow ? &queue : nullptr);
  }
  void deliver(Flow flow, std::uint32_t i, Phase phase = Phase::train) {
    mailbox->deliver(TensorMessage{flow, {phase, 1, i, {2, 4}}, 0, smallPayload(0)});
  }
  void runAll() {
    while (worker->runOne()) {
    }
  }

  // Like runAll(), and finishes all of the device's pending work.
  void runThrough() {
    runAll();
    while (!queue.waiting.empty()) {
      queue.finishOne();
      runAll();
    }
  }

  DeviceExecutor device;
  std::shared_ptr<NotingLink> link = std::make_shared<NotingLink>();
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(device, 2);
  SlowQueue queue;
  int finished = 0;
  bool failed = false;
  std::string code;  // the error code, if the run failed
  std::unique_ptr<EngineWorker> worker;
};

TEST_CASE("an action's output is sent when the device has finished it, not earlier") {
  SlowServer server;
  server.deliver(activationAt(0), 0);
  server.deliver(activationAt(0), 1);
  server.runAll();
  // Both actions are issued, one after the other.
  CHECK(server.queue.begun == 2);
  CHECK(server.link->sent.empty());
  server.queue.finishOne();
  server.runAll();
  REQUIRE(server.link->sent.size() == 1);
  CHECK(std::get<TensorMessage>(server.link->sent[0]).at.i == 0);
  server.queue.finishOne();
  server.runAll();
  CHECK(server.link->sent.size() == 2);

  server.deliver(gradientAt(1), 0);
  server.deliver(gradientAt(1), 1);
  server.runAll();
  server.queue.finishOne();
  server.queue.finishOne();
  server.runAll();
  // The report is issued only after all backwards have finished.
  CHECK(server.queue.begun == 5);
  server.queue.finishOne();
  server.runAll();
  const BodyDone& done = std::get<BodyDone>(server.link->sent.back());
  CHECK(done.forwardSeconds == 4.0);
  CHECK(done.backwardSeconds == 4.0);
  CHECK_FALSE(server.failed);
}

TEST_CASE("a report is made in the turn of the last backward") {
  SlowServer server(/*isSlow=*/false);
  for (const Flow flow : {activationAt(0), gradientAt(1)}) {
    server.deliver(flow, 0);
    server.deliver(flow, 1);
    CHECK(server.worker->runOne());
    CHECK_FALSE(std::holds_alternative<BodyDone>(server.link->sent.back()));
    CHECK(server.worker->runOne());
  }
  CHECK(std::holds_alternative<BodyDone>(server.link->sent.back()));
}

TEST_CASE("a worker has work from a message's arrival until its device has finished it") {
  SlowServer server;
  CHECK_FALSE(server.worker->hasWork());
  server.deliver(activationAt(0), 0);
  CHECK(server.worker->hasWork());  // even if the device is busy with other workers
  server.runAll();
  CHECK(server.worker->hasWork());  // the device has not finished the action
  server.queue.finishOne();
  server.runAll();
  CHECK_FALSE(
      server.worker->hasWork());  // the batch has begun, but its next micro-batch has not arrived
  server.deliver(activationAt(0), 1);
  server.runThrough();
  CHECK_FALSE(server.worker->hasWork());
}

TEST_CASE("a worker says once that it is idle: now, after its work, or when its run fails") {
  int calls = 0;
  const auto count = [&] { ++calls; };
  SlowServer server;
  server.worker->whenIdle(count);
  CHECK(calls == 1);

  server.deliver(activationAt(0), 0);
  server.worker->whenIdle(count);
  server.runAll();
  CHECK(calls == 1);  // the device computes
  server.runThrough();
  CHECK(calls == 2);
  server.deliver(activationAt(0), 1);
  server.runThrough();
  CHECK(calls == 2);

  server.deliver(activationAt(0), 1);  // arrives twice
  server.worker->whenIdle(count);
  CHECK(calls == 2);
  server.runThrough();
  CHECK(server.failed);
  CHECK(calls == 3);
}

TEST_CASE("a batch that ends with a late completion is finished exactly once") {
  SlowServer server;
  server.deliver(activationAt(0), 0, Phase::eval);
  server.deliver(activationAt(0), 1, Phase::eval);
  server.runAll();
  CHECK(server.finished == 0);
  server.queue.finishOne();
  server.queue.finishOne();
  server.runAll();
  CHECK(server.finished == 1);
}

TEST_CASE("the time between two training steps is measured, except across an evaluation") {
  SlowServer server;
  const auto give = [&](Flow flow, Phase phase, std::uint64_t step, std::uint64_t applied) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      server.mailbox->deliver(
          TensorMessage{flow, {phase, step, i, {2, 4}}, applied, smallPayload(0)});
    }
    server.runThrough();
  };
  const auto train = [&](std::uint64_t step) {
    give(activationAt(0), Phase::train, step, step - 1);
    give(gradientAt(1), Phase::train, step, step - 1);
    server.mailbox->deliver(StepDecision{step, true, {0.1}, 1, 1, false, {}});
    server.runThrough();
    REQUIRE(server.worker->engine().applied() == step);
  };
  train(1);
  CHECK_FALSE(server.worker->betweenSteps());
  train(2);
  CHECK(server.worker->betweenSteps().value_or(-1) > 0);
  give(activationAt(0), Phase::eval, 1, 2);
  train(3);
  CHECK_FALSE(server.worker->betweenSteps());
}

TEST_CASE("a worker that is destroyed waits for its device, and sends nothing more") {
  SlowServer server;
  server.deliver(activationAt(0), 0);
  server.runAll();
  server.worker->stop();
  server.worker.reset();
  CHECK(server.queue.waiting.empty());
  CHECK(server.link->sent.empty());
}

TEST_CASE("an action that takes longer than allowed ends the run, and sends nothing") {
  SlowServer server;
  server.worker->limitActions(1.9);
  server.deliver(activationAt(0), 0);
  server.runThrough();
  CHECK(server.code == "action-too-long");
  CHECK(server.link->sent.empty());
}

TEST_CASE("an action that takes as long as allowed does not end the run") {
  SlowServer server;
  server.worker->limitActions(2);
  server.deliver(activationAt(0), 0);
  server.runThrough();
  CHECK_FALSE(server.failed);
  CHECK(server.link->sent.size() == 1);
}

TEST_CASE("a worker's build finishes before the first message is processed") {
  SlowServer server;
  int built = 0;
  server.worker->buildFirst([&] {
    ++built;
    ActionTable table;
    table[static_cast<std::size_t>(ActionKind::bodyForward)] = [](Work) -> Result {
      return bundleOf(smallPayload(7));
    };
    return table;
  });
  server.deliver(activationAt(0), 0);
  CHECK(server.worker->runOne());
  CHECK(built == 1);
  CHECK(server.queue.begun == 0);
  server.runThrough();
  CHECK(built == 1);
  CHECK(server.link->sent.size() == 1);
}

// A worker whose body has replicas, with one micro-batch.
struct ReducingServer {
  ReducingServer() {
    EngineOptions options{&findSchedule("priority"), 1, 1};
    options.reduces = true;
    ActionTable table;
    for (const ActionKind kind : {ActionKind::bodyForward, ActionKind::bodyBackward}) {
      table[indexOf(kind)] = [](Work) -> Result { return bundleOf(smallPayload(1)); };
    }
    table[indexOf(ActionKind::report)] = [](Work) -> Result { return GradientReport{2, true}; };
    table.starts[indexOf(ActionKind::reduce)] = [this](Work, Done done) {
      reduced = [done = std::move(done)](std::exception_ptr error) { done({}, std::move(error)); };
    };
    worker = std::make_unique<EngineWorker>(
        std::make_unique<Participant>(options, Place{},
                                      std::vector<std::shared_ptr<EngineLink>>{link}),
        mailbox, table, [] {},
        [this](std::exception_ptr error) {
          code = errorCode([&] { std::rethrow_exception(error); });
        });
    worker->limitActions(0.5);
    for (const Flow flow : {activationAt(0), gradientAt(1)}) {
      mailbox->deliver(TensorMessage{flow, {Phase::train, 1, 0, {1, 4}}, 0, smallPayload(0)});
      runAll();
    }
  }
  void runAll() {
    while (worker->runOne()) {
    }
  }

  DeviceExecutor device;
  std::shared_ptr<NotingLink> link = std::make_shared<NotingLink>();
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(device, 1);
  std::function<void(std::exception_ptr)> reduced;  // set while the reduction is pending
  std::string code;                                 // the error code, if the run failed
  std::unique_ptr<EngineWorker> worker;
};

TEST_CASE("a reduction ends when another thread says so, and the device is free until then") {
  ReducingServer server;
  REQUIRE(server.reduced);
  CHECK_FALSE(server.worker->runOne());
  CHECK(server.worker->hasWork());  // the client waits for the server
  CHECK_FALSE(server.worker->hasOpenStep());
  CHECK_FALSE(std::holds_alternative<BodyDone>(server.link->sent.back()));
  std::thread([&] { server.reduced(nullptr); }).join();
  server.runAll();
  CHECK(std::holds_alternative<BodyDone>(server.link->sent.back()));
  CHECK(server.worker->hasOpenStep());
  CHECK(server.code.empty());
}

TEST_CASE("a reduction that fails ends the run") {
  ReducingServer server;
  REQUIRE(server.reduced);
  server.reduced(std::make_exception_ptr(RunError("replica-lost", "replica 1 has ended")));
  server.runAll();
  CHECK(server.code == "replica-lost");
}

TEST_CASE("a reduction may end after its worker") {
  ReducingServer server;
  REQUIRE(server.reduced);
  server.worker->stop();
  server.worker.reset();
  server.reduced(nullptr);
  CHECK_FALSE(std::holds_alternative<BodyDone>(server.link->sent.back()));
}

// A worker whose forwards compute in a process, until the test ends them. A batch has four
// micro-batches.
struct ServerWithProcess {
  struct Process : ActionProcess {
    void collect() override {
      for (; ended > 0; --ended) {
        asked.front()(bundleOf(smallPayload(1)), nullptr);
        asked.pop_front();
      }
      if (fails) throw RunError("body-crashed", "the process has ended");
    }
    std::optional<DeviceWorker::Started> started() const override {
      if (asked.empty()) return std::nullopt;
      return DeviceWorker::Started{};
    }
    std::deque<Done> asked;
    int ended = 0;  // but not collected
    bool fails = false;
  };

  ServerWithProcess() {
    ActionTable table;
    table.process = &process;
    table.starts[indexOf(ActionKind::bodyForward)] = [this](Work, Done done) {
      process.asked.push_back(std::move(done));
    };
    worker = std::make_unique<EngineWorker>(
        std::make_unique<Participant>(EngineOptions{&findSchedule("priority"), 4, 4}, Place{},
                                      std::vector<std::shared_ptr<EngineLink>>{link}),
        mailbox, table, [] {},
        [this](std::exception_ptr error) {
          code = errorCode([&] { std::rethrow_exception(error); });
        });
    for (std::uint32_t i = 0; i < 4; ++i) {
      mailbox->deliver(
          TensorMessage{activationAt(0), {Phase::train, 1, i, {4, 4}}, 0, smallPayload(0)});
    }
    runAll();
  }
  void runAll() {
    while (worker->runOne()) {
    }
  }
  void endOne() {
    process.ended = 1;
    CHECK(worker->collect());
  }

  DeviceExecutor device;
  std::shared_ptr<NotingLink> link = std::make_shared<NotingLink>();
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(device, 4);
  Process process;
  std::string code;  // the error code, if the run failed
  std::unique_ptr<EngineWorker> worker;
};

TEST_CASE("after a short action, the next one waits in the process while another one runs") {
  std::optional<ServerWithProcess> server;
  double seconds = 1;
  while (seconds > 0.04) {  // the machine may be busy
    const SteadyTime start = now();
    server.emplace();
    server->endOne();
    seconds = secondsSince(start);
  }
  CHECK(server->link->sent.size() == 1);
  server->runAll();
  CHECK(server->process.asked.size() == 2);
  CHECK(server->worker->started());
}

TEST_CASE("actions in a process end in the order in which they were started") {
  ServerWithProcess server;
  CHECK(server.process.asked.size() == 1);
  CHECK_FALSE(server.worker->collect());
  for (std::uint32_t i = 0; i < 4; ++i) {
    server.endOne();
    CHECK(std::get<TensorMessage>(server.link->sent.back()).at.i == i);
    server.runAll();
  }
  CHECK_FALSE(server.worker->started());
  CHECK_FALSE(server.worker->mayHaveWork());
}

TEST_CASE("after a long action, the next one waits until it is sent to the process") {
  ServerWithProcess server;
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  server.endOne();
  server.runAll();
  CHECK(server.process.asked.size() == 1);
}

TEST_CASE("a process that ends in an action ends the run") {
  ServerWithProcess server;
  server.process.fails = true;
  CHECK(server.worker->collect());
  CHECK(server.code == "body-crashed");
  CHECK_FALSE(server.worker->started());
  CHECK_FALSE(server.worker->runOne());
  CHECK_FALSE(server.worker->mayHaveWork());
}

TEST_CASE("an action that takes too long has a hint that helps") {
  const auto hint = [](ActionKind kind) { return actionTooLong("", durationOf(kind)).hint(); };
  using Catch::Matchers::Contains;
  for (const ActionKind kind :
       {ActionKind::bodyForward, ActionKind::bodyBackward, ActionKind::bodyWeights}) {
    CHECK_THAT(hint(kind), Contains("use a smaller batch") && Contains("limits.action_seconds"));
  }
  for (const ActionKind kind : {ActionKind::update, ActionKind::snapshot, ActionKind::restore}) {
    CHECK_THAT(hint(kind), Contains("model.cuts") && Contains("limits.action_seconds"));
    CHECK_THAT(hint(kind), !Contains("smaller batch"));
  }
}

TEST_CASE("a build is either cancelled or started, never both") {
  SlowServer server;
  int built = 0;
  server.worker->buildFirst([&] {
    ++built;
    return ActionTable{};
  });
  const bool inTime = GENERATE(true, false);
  if (!inTime) server.runAll();
  CHECK(server.worker->cancelBuild() == inTime);
  server.runAll();
  CHECK(built == (inTime ? 0 : 1));
}

TEST_CASE("a build that fails, or takes too long, ends the run") {
  SlowServer server;
  const bool fails = GENERATE(true, false);
  server.worker->limitActions(0);
  server.worker->buildFirst([&]() -> ActionTable {
    if (fails) throw RunError("out-of-memory", "no memory");
    return {};
  });
  server.runAll();
  CHECK(server.code == (fails ? "out-of-memory" : "action-too-long"));
}

}  // namespace
}  // namespace cleave::test
