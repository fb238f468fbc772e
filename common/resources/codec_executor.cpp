#include "common/resources/codec_executor.h"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// Minimum turn: each switch costs a thread wake-up and cold caches.
constexpr double kTurnSeconds = 0.02;

}  // namespace

struct CodecExecutor::State : std::enable_shared_from_this<CodecExecutor::State> {
  State(int threadCount, double limit)
      : max(static_cast<std::size_t>(std::max(threadCount, 1))), taskSeconds(limit) {}

  // Gives free turns to the queues that have used the least time. Requires the lock.
  void giveTurns() {
    while (!stopping && atWork < max && !waiting.empty()) {
      const auto next = std::min_element(
          waiting.begin(), waiting.end(),
          [](const auto& a, const auto& b) { return a->usedSeconds_ < b->usedSeconds_; });
      std::shared_ptr<CodecQueue> queue = std::move(*next);
      waiting.erase(next);
      assert(queue->stage_ == CodecQueue::Stage::waiting);
      floor = std::max(floor, queue->usedSeconds_);
      beginTurn(*queue);
      if (queue->isPaused_) {
        queue->resumed_.notify_one();
        continue;
      }
      begun.push_back(std::move(queue));
      if (idleThreads < begun.size()) addThread();
      wake.notify_one();
    }
  }

  // If no thread can be created, the next free thread serves the queue. Only the first thread is
  // required.
  void addThread() {
    try {
      threads.emplace_back([self = shared_from_this()] { self->serve(); });
    } catch (const std::system_error&) {
      if (!threads.empty()) return;
      begun.pop_back();
      --atWork;
      throw;
    }
  }

  void beginTurn(CodecQueue& queue) {
    ++atWork;
    queue.stage_ = CodecQueue::Stage::atWork;
    queue.turnBegan_ = queue.countedFrom_ = now();
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      if (!stopping && idleThreads >= max) return leave();
      ++idleThreads;
      wake.wait(lock, [this] { return stopping || !begun.empty(); });
      --idleThreads;
      if (stopping) return;
      const std::shared_ptr<CodecQueue> queue = std::move(begun.front());
      begun.pop_front();
      runOne(lock, *queue);
      assert(queue->stage_ == CodecQueue::Stage::atWork && atWork > 0);
      queue->stage_ = CodecQueue::Stage::idle;
      --atWork;
      if (auto ended = std::exchange(queue->ended_, {})) {
        lock.unlock();
        ended();
        lock.lock();
      }
      if (!queue->tasks_.empty()) {
        queue->stage_ = CodecQueue::Stage::waiting;
        waiting.push_back(queue);
      }
      giveTurns();
    }
  }

  // Requires the lock; called on a surplus thread. Threads become surplus when paused tasks finish.
  void leave() {
    const auto own = std::find_if(threads.begin(), threads.end(), [](const std::thread& thread) {
      return thread.get_id() == std::this_thread::get_id();
    });
    own->detach();
    threads.erase(own);
  }

  // Runs the queue's first task, unless it was cancelled meanwhile.
  static void runOne(std::unique_lock<std::mutex>& lock, CodecQueue& queue) {
    if (queue.tasks_.empty()) return;
    std::function<void()> task = std::move(queue.tasks_.front());
    queue.tasks_.pop_front();
    queue.taskSeconds_ = 0;
    queue.countedFrom_ = now();
    lock.unlock();
    task();
    task = nullptr;  // destroyed without the lock: it may own large objects
    lock.lock();
    queue.countTime();
  }

  const std::size_t max;
  const double taskSeconds;  // 0: no limit
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::shared_ptr<CodecQueue>> waiting;  // for a turn
  std::deque<std::shared_ptr<CodecQueue>> begun;     // have a turn, and wait for a thread
  std::size_t atWork = 0;                            // turns given
  double floor = 0;  // minimum usedSeconds_ for a queue that was idle
  std::size_t idleThreads = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

CodecExecutor::CodecExecutor(int threads, double taskSeconds)
    : state_(std::make_shared<State>(threads, taskSeconds)) {}

std::shared_ptr<CodecQueue> CodecExecutor::open() {
  return std::shared_ptr<CodecQueue>(new CodecQueue(state_));
}

void CodecExecutor::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
    for (const auto& queue : state_->waiting) queue->resumed_.notify_one();
  }
  state_->wake.notify_all();
  for (std::thread& thread : threads) thread.join();

  std::vector<std::shared_ptr<CodecQueue>> left;
  {
    const std::lock_guard lock(state_->mutex);
    left.swap(state_->waiting);
    left.insert(left.end(), state_->begun.begin(), state_->begun.end());
    state_->begun.clear();
  }
  for (const auto& queue : left) queue->cancel();  // a task may own its queue: breaks the cycle
}

void CodecQueue::post(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (isCancelled_ || state_->stopping) return;
  tasks_.push_back(std::move(task));
  if (stage_ != Stage::idle) return;
  stage_ = Stage::waiting;
  // A queue earns no credit for time in which it had no tasks.
  usedSeconds_ = std::max(usedSeconds_, state_->floor);
  state_->waiting.push_back(shared_from_this());
  state_->giveTurns();
}

void CodecQueue::cancel(std::function<void()> ended) {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(state_->mutex);
    isCancelled_ = true;
    dropped.swap(tasks_);
    resumed_.notify_one();
    if (stage_ == Stage::waiting && !isPaused_) {
      stage_ = Stage::idle;
      std::erase(state_->waiting, shared_from_this());
    }
    if (stage_ != Stage::idle && !state_->stopping) ended_ = std::exchange(ended, {});
  }
  if (ended) ended();
}

void CodecQueue::checkpoint() {
  std::unique_lock lock(state_->mutex);
  countTime();
  throwIfOver();
  const auto& waiting = state_->waiting;
  const bool othersAreBehind =
      std::any_of(waiting.begin(), waiting.end(),
                  [this](const auto& queue) { return queue->usedSeconds_ < usedSeconds_; });
  if (!othersAreBehind || secondsBetween(turnBegan_, countedFrom_) < kTurnSeconds) return;

  assert(stage_ == Stage::atWork && state_->atWork > 0);
  stage_ = Stage::waiting;
  isPaused_ = true;
  --state_->atWork;
  state_->waiting.push_back(shared_from_this());
  state_->giveTurns();
  resumed_.wait(lock,
                [this] { return stage_ == Stage::atWork || isCancelled_ || state_->stopping; });
  isPaused_ = false;
  if (stage_ != Stage::atWork) {  // a task that is about to throw needs no turn
    std::erase(state_->waiting, shared_from_this());
    state_->beginTurn(*this);
  }
  throwIfOver();
}

void CodecQueue::countTime() {
  const double seconds = secondsSince(countedFrom_);
  countedFrom_ = now();
  usedSeconds_ += seconds;
  taskSeconds_ += seconds;
}

void CodecQueue::throwIfOver() const {
  if (isCancelled_ || state_->stopping) throw RunError("cancelled", "the session has ended");
  const double limit = state_->taskSeconds;
  if (limit == 0 || taskSeconds_ <= limit) return;
  throw RunError("codec-too-long",
                 "encoding or decoding one tensor took longer than " + durationText(limit) +
                     " on the server (limits.codec_seconds in its configuration)",
                 "use a faster codec, or smaller micro-batches");
}

}  // namespace cleave
