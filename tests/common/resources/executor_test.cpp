// The two executors: fair scheduling of codec work, and workers on the device.
#include "common/resources/executor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "common/core/error.h"
#include "common/resources/codec_executor.h"

using namespace cleave;

namespace {

constexpr double kPatience = 60;  // seconds; the waits are normally much shorter

// Waits until all tasks posted to the queue so far are done.
void finish(CodecQueue& queue) {
  std::promise<void> done;
  queue.post([&] { done.set_value(); });
  REQUIRE(done.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
}

// Calls checkpoint() until `done`. Returns the code of the error that a call throws.
std::string checkpointsUntil(CodecQueue& queue, const std::atomic<bool>& done) {
  const SteadyTime start = now();
  try {
    while (!done && secondsSince(start) < kPatience) queue.checkpoint();
  } catch (const RunError& error) {
    return error.code();
  }
  return done ? "" : "no other task had a turn";
}

}  // namespace

// ---- Codec work ----

TEST_CASE("a queue's tasks run one at a time, in order") {
  CodecExecutor executor(4);
  const auto queue = executor.open();
  std::vector<int> ran;  // not protected by a lock, so that TSan reports tasks that run in parallel
  for (int k = 0; k < 1000; ++k) queue->post([&ran, k] { ran.push_back(k); });
  finish(*queue);
  std::vector<int> wanted(1000);
  std::iota(wanted.begin(), wanted.end(), 0);
  CHECK(ran == wanted);
}

TEST_CASE(
    "at most as many queues run as there are threads, including tasks that wait for their turn") {
  CodecExecutor executor(2);
  std::vector<std::shared_ptr<CodecQueue>> queues;
  std::atomic<int> atWork = 0, max = 0;
  for (int q = 0; q < 6; ++q) {
    const auto queue = executor.open();
    queues.push_back(queue);
    queue->post([&, queue = queue.get()] {
      const SteadyTime start = now();
      while (secondsSince(start) < 0.3) {
        const int count = ++atWork;
        for (int seen = max; seen < count && !max.compare_exchange_weak(seen, count);) {
        }
        --atWork;
        queue->checkpoint();
      }
    });
  }
  for (const auto& queue : queues) finish(*queue);
  CHECK(max <= 2);
}

TEST_CASE("at its next checkpoint a long task yields to a queue that has used less time") {
  CodecExecutor executor(1);
  const auto slow = executor.open(), fast = executor.open();
  std::atomic<bool> fastRan = false;
  std::promise<void> begun;
  std::string code = "not run";
  slow->post([&] {
    begun.set_value();
    code = checkpointsUntil(*slow, fastRan);
  });
  begun.get_future().wait();
  fast->post([&] { fastRan = true; });
  finish(*slow);
  CHECK(code.empty());
}

TEST_CASE("two long tasks share one thread") {
  CodecExecutor executor(1);
  const auto first = executor.open(), second = executor.open();
  // Each task ends only after the other has run for a while.
  std::atomic<bool> firstWent = false, secondWent = false;
  const auto task = [](CodecQueue& queue, std::atomic<bool>& went, const std::atomic<bool>& other,
                       std::string& code) {
    const SteadyTime start = now();
    while (secondsSince(start) < 0.1) queue.checkpoint();
    went = true;
    code = checkpointsUntil(queue, other);
  };
  std::string firstCode, secondCode;
  first->post([&] { task(*first, firstWent, secondWent, firstCode); });
  second->post([&] { task(*second, secondWent, firstWent, secondCode); });
  finish(*first);
  finish(*second);
  CHECK(firstCode.empty());
  CHECK(secondCode.empty());
}

TEST_CASE("a cancelled queue drops its waiting tasks, and ends the running one at a checkpoint") {
  CodecExecutor executor(1);
  const auto queue = executor.open();
  const auto token = std::make_shared<int>();
  const std::atomic<bool> never = false;
  std::promise<void> begun;
  std::promise<std::string> ended;
  queue->post([&] {
    begun.set_value();
    ended.set_value(checkpointsUntil(*queue, never));
  });
  queue->post([token] { FAIL("it was dropped"); });
  begun.get_future().wait();
  queue->cancel();
  CHECK(token.use_count() == 1);
  CHECK(ended.get_future().get() == "cancelled");
  queue->post([token] { FAIL("it was cancelled before"); });
  CHECK(token.use_count() == 1);
  finish(*executor.open());
}

TEST_CASE("the callback of a cancellation runs when no task of the queue runs any more") {
  std::atomic<bool> begun = false, mayEnd = false, isOver = false;
  std::promise<bool> ended;
  CodecExecutor codecs(1);
  const auto queue = codecs.open();
  queue->post([&] {
    begun = true;
    while (!mayEnd) std::this_thread::yield();
    isOver = true;
  });
  while (!begun) std::this_thread::yield();
  queue->cancel([&] { ended.set_value(isOver); });
  auto future = ended.get_future();
  CHECK(future.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  mayEnd = true;
  CHECK(future.get());

  std::promise<void> atOnce;  // fulfilled immediately, because the queue is empty
  codecs.open()->cancel([&] { atOnce.set_value(); });
  CHECK(atOnce.get_future().wait_for(std::chrono::seconds(0)) == std::future_status::ready);
}

TEST_CASE("a task that waits for its turn ends immediately if its queue is cancelled") {
  CodecExecutor executor(1);
  const auto waiting = executor.open(), other = executor.open();
  const std::atomic<bool> never = false;
  std::atomic<bool> release = false;
  std::promise<void> begun, otherRuns;
  std::promise<std::string> ended;
  waiting->post([&] {
    begun.set_value();
    ended.set_value(checkpointsUntil(*waiting, never));
  });
  begun.get_future().wait();
  other->post([&] {
    otherRuns.set_value();
    const SteadyTime start = now();
    while (!release && secondsSince(start) < kPatience) std::this_thread::yield();
  });
  otherRuns.get_future().wait();
  waiting->cancel();
  CHECK(ended.get_future().get() == "cancelled");
  release = true;
  executor.stop();  // its tasks use this function's variables
}

TEST_CASE("a task that uses more time than allowed is ended") {
  CodecExecutor executor(1, 0.5);
  const auto queue = executor.open();
  const std::atomic<bool> never = false;
  std::string code;
  queue->post([&] { code = checkpointsUntil(*queue, never); });
  finish(*queue);
  CHECK(code == "codec-too-long");
  // The limit applies to each task, not to their sum.
  for (int k = 0; k < 3; ++k) {
    queue->post([&] {
      const SteadyTime start = now();
      while (secondsSince(start) < 0.2) {
      }
      const std::atomic<bool> done = true;
      queue->checkpoint();
      code = checkpointsUntil(*queue, done);
    });
  }
  finish(*queue);
  CHECK(code.empty());
}

TEST_CASE("an executor that stops ends the running tasks and frees the waiting ones") {
  auto executor = std::make_unique<CodecExecutor>(1);
  auto queue = executor->open(), other = executor->open();
  const std::weak_ptr<CodecQueue> watched = other;
  const std::atomic<bool> never = false;
  std::promise<void> begun;
  std::promise<std::string> ended;
  queue->post([&, queue = queue.get()] {
    begun.set_value();
    ended.set_value(checkpointsUntil(*queue, never));
  });
  begun.get_future().wait();
  // Like a link's tasks, these keep their own queue alive.
  for (int k = 0; k < 3; ++k) other->post([other] { other->checkpoint(); });
  other.reset();
  executor->stop();
  CHECK(ended.get_future().get() == "cancelled");
  CHECK(watched.expired());
  queue->post([] { FAIL("nothing runs any more"); });
  executor.reset();
  queue->post([] { FAIL("nothing runs any more"); });
}

// ---- The device ----

namespace {

// A worker whose actions each take this long.
class Busy : public DeviceWorker {
 public:
  explicit Busy(double seconds, int times = 1 << 30) : seconds_(seconds), left_(times) {}
  bool runOne() noexcept override {
    if (!mayHaveWork()) return false;
    --left_;
    begins.push_back(now());
    while (secondsSince(begins.back()) < seconds_) {
    }
    return true;
  }
  bool mayHaveWork() const noexcept override { return left_ > 0; }
  std::vector<SteadyTime> begins;

 private:
  const double seconds_;
  int left_;
};

}  // namespace

TEST_CASE("a worker with long actions waits for a newly connected one, which runs first") {
  DeviceExecutor device;
  const auto hog = std::make_shared<Busy>(0.5), quiet = std::make_shared<Busy>(0.0, 1);
  device.attach(hog);
  device.attach(quiet);
  device.runUntil([&] { return hog->begins.size() == 2; });
  CHECK(quiet->begins.size() == 1);
  // The expected wait is the action's time minus the allowed lead. Load on the machine can only
  // make it longer.
  const double between = secondsBetween(hog->begins[0], hog->begins[1]) - 0.5;
  CHECK(between > 0.5 - FairShares::kLeadSeconds - 0.01);
}

// As the build of a client's model, which cannot be interrupted, if the client disconnects
// meanwhile.
TEST_CASE("an action whose worker leaves while it runs is charged to the owner's next worker") {
  class Leaving : public DeviceWorker {
   public:
    explicit Leaving(std::function<void()> leaves) : leaves_(std::move(leaves)) {}
    bool runOne() noexcept override {
      leaves_();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return true;
    }

   private:
    const std::function<void()> leaves_;
  };
  DeviceExecutor device;
  std::weak_ptr<DeviceWorker> first;
  const auto second = std::make_shared<Busy>(0, 1), other = std::make_shared<Busy>(0.01);
  const auto leaving = std::make_shared<Leaving>([&] {
    device.detach(first.lock());
    device.attach(second, "a");
    device.attach(other, "b");
  });
  first = leaving;
  device.attach(leaving, "a");
  device.runUntil([&] { return !second->begins.empty(); });
  // The other owner's worker first uses about as much, less the allowed lead.
  REQUIRE_FALSE(other->begins.empty());
  CHECK(secondsBetween(other->begins.front(), second->begins.front()) >
        0.5 - FairShares::kLeadSeconds - 0.02);
}

TEST_CASE("an idle executor sleeps until it is woken") {
  DeviceExecutor device;
  std::atomic<bool> done = false;
  std::thread other([&] { device.post([&] { done = true; }); });
  device.runUntil([&] { return done.load(); });
  other.join();
}

namespace {

// A worker whose actions compute elsewhere until endOne().
class Elsewhere : public DeviceWorker {
 public:
  Elsewhere(int actions, std::size_t ahead) : left_(actions), max_(ahead), pipe_(pipeEnds()) {}
  bool runOne() noexcept override {
    if (left_ == 0 || underWay >= max_) return false;
    --left_;
    ++underWay;
    maxSeen = std::max(maxSeen, underWay);
    return true;
  }
  std::optional<Started> started() const noexcept override {
    if (underWay == 0) return std::nullopt;
    return Started{pipe_.first.get(), deadline};
  }
  bool collect() noexcept override {
    char byte = 0;
    const bool isLate = now() >= deadline;
    if (::read(pipe_.first.get(), &byte, 1) != 1 && !isLate) return false;
    wasLate |= isLate;
    --underWay;
    ++ended;
    return true;
  }
  bool mayHaveWork() const noexcept override { return left_ > 0; }
  void endOne() { REQUIRE(::write(pipe_.second.get(), "x", 1) == 1); }  // any thread

  SteadyTime deadline = SteadyTime::max();
  std::size_t underWay = 0, maxSeen = 0;
  int ended = 0;
  bool wasLate = false;

 private:
  static std::pair<OpenFile, OpenFile> pipeEnds() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) == 0);
    return {OpenFile(ends[0]), OpenFile(ends[1])};
  }
  int left_;
  const std::size_t max_;
  const std::pair<OpenFile, OpenFile> pipe_;
};

}  // namespace

TEST_CASE("started actions end in another process, whose answer wakes the device thread") {
  DeviceExecutor device;
  const auto worker = std::make_shared<Elsewhere>(3, 2);
  device.attach(worker);
  std::thread process([&] {
    for (int k = 0; k < 3; ++k) worker->endOne();
  });
  device.runUntil([&] { return worker->ended == 3; });
  process.join();
  CHECK(worker->underWay == 0);
}

TEST_CASE("no other run's action begins until the started ones have ended") {
  DeviceExecutor device;
  const auto worker = std::make_shared<Elsewhere>(1, 2);
  const auto other = std::make_shared<Busy>(0, 1);
  device.attach(worker);
  device.runUntil([&] { return worker->underWay == 1; });
  device.attach(other);
  bool hasWaited = false;
  device.post([&] { hasWaited = other->begins.empty(); });
  device.runUntil([&] { return hasWaited; });
  worker->endOne();
  device.runUntil([&] { return !other->begins.empty(); });
  CHECK(worker->ended == 1);
}

TEST_CASE("a run starts a second action only if no other run waits") {
  // Ends an action at every third look. Its deadline has passed, so the executor does not wait.
  class Polled : public Elsewhere {
   public:
    Polled() : Elsewhere(4, 2) { deadline = SteadyTime(); }
    bool collect() noexcept override { return ++looks_ % 3 == 0 && Elsewhere::collect(); }

   private:
    int looks_ = 0;
  };
  DeviceExecutor device;
  const auto worker = std::make_shared<Polled>();
  const bool isAlone = GENERATE(true, false);
  const auto other = std::make_shared<Busy>(0, isAlone ? 0 : 1 << 30);
  device.attach(worker);
  if (!isAlone) device.attach(other);
  device.runUntil([&] { return worker->ended == 4; });
  CHECK(worker->maxSeen == (isAlone ? 2U : 1U));
}

TEST_CASE("a process that does not answer is looked at when its time is over") {
  DeviceExecutor device;
  const auto worker = std::make_shared<Elsewhere>(1, 2);
  worker->deadline = now() + std::chrono::milliseconds(20);
  device.attach(worker);
  device.runUntil([&] { return worker->ended == 1; });
  CHECK(worker->wasLate);
}

TEST_CASE("a run that leaves in the middle of a started action frees the device") {
  DeviceExecutor device;
  const auto worker = std::make_shared<Elsewhere>(1, 2);
  const auto other = std::make_shared<Busy>(0, 1);
  device.attach(worker);
  device.runUntil([&] { return worker->underWay == 1; });
  device.attach(other);
  std::thread thread([&] { device.detach(worker); });
  device.runUntil([&] { return !other->begins.empty(); });
  thread.join();
  CHECK(worker->ended == 0);
}
