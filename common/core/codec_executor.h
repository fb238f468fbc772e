// Runs the codec work of all sessions. Each session has a queue, whose tasks run one at a time and
// in order. At most `threads` queues are at work at once, and the next turn goes to the queue that
// has used the least time: start-time fair queueing as in fair_shares.h, but without holding queues
// back, because codec work can be interrupted.
//
// A task that takes long calls checkpoint() now and then. There it waits while a queue that has
// used less needs the turn, and ends if its session has ended or if it takes longer than allowed.
//
// A task that waits in checkpoint() keeps its thread, so there may be more threads than `threads`,
// by one for each such task; no more than `threads` of them compute.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>

#include "common/core/clock.h"

namespace cleave {

class CodecQueue;

class CodecExecutor {
 public:
  // `taskSeconds`: maximum time of one task; 0: no limit.
  explicit CodecExecutor(int threads, double taskSeconds = 0);
  ~CodecExecutor() { stop(); }
  CodecExecutor(const CodecExecutor&) = delete;
  CodecExecutor& operator=(const CodecExecutor&) = delete;

  // Any thread. The queue may outlive the executor; what is posted then is dropped.
  std::shared_ptr<CodecQueue> open();
  // Drops waiting tasks, and returns when those that run have reached a checkpoint or their end.
  // Not on a thread of the executor.
  void stop();

 private:
  friend class CodecQueue;
  struct State;
  const std::shared_ptr<State> state_;
};

class CodecQueue : public std::enable_shared_from_this<CodecQueue> {
 public:
  // Any thread. The task must not throw.
  void post(std::function<void()> task);
  // Any thread: drops waiting tasks; the one that runs ends at its next checkpoint. `ended`, if it
  // is not empty, is called once when none runs any more, on this or another thread, and must not
  // block. Without threads any more (stop()) it is called too.
  void cancel(std::function<void()> ended = {});
  // Within a task, on its thread, about every 20 ms. Throws RunError "codec-too-long", and
  // "cancelled" after cancel().
  void checkpoint();

 private:
  friend class CodecExecutor;
  friend struct CodecExecutor::State;
  enum class Stage { idle, waiting, atWork };

  explicit CodecQueue(std::shared_ptr<CodecExecutor::State> state) : state_(std::move(state)) {}
  void throwIfOver() const;
  void countTime();

  const std::shared_ptr<CodecExecutor::State> state_;  // its mutex guards what follows
  std::deque<std::function<void()>> tasks_;            // without the one that runs
  Stage stage_ = Stage::idle;
  bool isPaused_ = false;  // a task waits in checkpoint()
  bool isCancelled_ = false;
  std::function<void()> ended_;  // of cancel(); empty: nobody waits for the task that runs
  std::condition_variable resumed_;
  double usedSeconds_ = 0;  // of all its tasks; comparable between queues
  double taskSeconds_ = 0;  // of the task that runs
  SteadyTime countedFrom_, turnBegan_;
};

}  // namespace cleave
