// Runs the codec work of all sessions. Each session has a queue, whose tasks run one at a time and
// in order. At most `threads` queues run at once. The next turn goes to the queue that has used the
// least time: start-time fair queueing, as in fair_shares.h. Unlike FairShares, CodecExecutor holds
// no queue back, because codec work can be interrupted.
//
// A long task calls checkpoint() regularly. The call pauses while a queue that has used less time
// needs the turn. It throws if the session has ended or the task has exceeded its time limit.
//
// A paused task keeps its thread, so there is one additional thread per paused task. At most
// `threads` threads compute at once.
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
  // `taskSeconds`: maximum compute time of one task; 0: no limit.
  explicit CodecExecutor(int threads, double taskSeconds = 0);
  ~CodecExecutor() { stop(); }
  CodecExecutor(const CodecExecutor&) = delete;
  CodecExecutor& operator=(const CodecExecutor&) = delete;

  // Any thread. A queue may outlive the executor; tasks posted to it afterwards are dropped.
  std::shared_ptr<CodecQueue> open();
  // Drops waiting tasks, and returns when the running ones have finished or thrown at a checkpoint.
  // Must not be called on a thread of the executor.
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
  // Any thread. Drops waiting tasks; the running one throws at its next checkpoint. `ended`, unless
  // empty, is called exactly once, on this or another thread, when no task is running. It must not
  // block. It is also called after stop().
  void cancel(std::function<void()> ended = {});
  // Called by a task, on its thread, about every 20 ms. Throws RunError "codec-too-long", or
  // "cancelled" after cancel() or stop().
  void checkpoint();

 private:
  friend class CodecExecutor;
  friend struct CodecExecutor::State;
  enum class Stage { idle, waiting, atWork };

  explicit CodecQueue(std::shared_ptr<CodecExecutor::State> state) : state_(std::move(state)) {}
  void throwIfOver() const;
  void countTime();

  const std::shared_ptr<CodecExecutor::State> state_;  // its mutex guards all members below
  std::deque<std::function<void()>> tasks_;            // waiting; excludes the running one
  Stage stage_ = Stage::idle;
  bool isPaused_ = false;  // a task waits in checkpoint()
  bool isCancelled_ = false;
  std::function<void()> ended_;  // set by cancel() if a task still runs
  std::condition_variable resumed_;
  double usedSeconds_ = 0;  // time of all its tasks; comparable between queues
  double taskSeconds_ = 0;  // time of the running task
  SteadyTime countedFrom_, turnBegan_;
};

}  // namespace cleave
