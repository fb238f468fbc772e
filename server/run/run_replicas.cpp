#include "server/run/run_replicas.h"

#include <cassert>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "common/core/clock.h"
#include "common/core/error.h"

namespace cleave {
namespace {

struct Call {
  std::uint64_t step = 0;
  std::span<float> values;
  std::function<void(std::exception_ptr)> done;
};

std::exception_ptr leftError() {
  return std::make_exception_ptr(RunError(ErrorKind::attempt, "replica-lost",
                                          "the run has left the group of its replicas",
                                          "the run has ended on this server; its log says why"));
}

}  // namespace

struct RunReplicas::State {
  ReplicaGroup group;
  std::string name;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  bool hasBegun = false;   // to join
  bool isRunning = false;  // the thread
  std::stop_source leaving;
  std::shared_ptr<const void> held;          // see abort()
  std::unique_ptr<GradientReducer> reducer;  // null: not joined, or left
  std::exception_ptr error;                  // why the group could not be joined
  std::optional<Call> waiting;               // until the group is joined
  SteadyTime waitingSince;                   // of `waiting`
};

RunReplicas::RunReplicas(ReplicaGroup group, std::string groupName)
    : state_(std::make_shared<State>()) {
  state_->group = std::move(group);
  state_->name = std::move(groupName);
}

RunReplicas::~RunReplicas() { abort(); }

// While no call has waited for the timeout, the others may not have received their first
// micro-batch yet, so a missing replica is no error.
std::unique_ptr<GradientReducer> RunReplicas::joinGroup(State& state) {
  for (;;) {
    try {
      return joinReplicas(state.group, state.name, state.leaving.get_token());
    } catch (const RunError& error) {
      const std::lock_guard lock(state.mutex);
      const bool hasWaited = state.waiting && now() - state.waitingSince >= state.group.timeout;
      const bool mayPass = error.retrySeconds() > 0;
      if (!mayPass || hasWaited || state.leaving.stop_requested()) throw;
    }
  }
}

// Joins the group, and leaves it after abort().
void RunReplicas::useGroup(State& state) {
  std::unique_ptr<GradientReducer> reducer;
  std::exception_ptr error;
  try {
    reducer = joinGroup(state);
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(state.mutex);
  state.error = error;
  if (!state.leaving.stop_requested()) state.reducer = std::move(reducer);
  if (std::optional<Call> call = std::exchange(state.waiting, std::nullopt)) {
    if (state.reducer) {
      state.reducer->reduce(call->step, call->values, std::move(call->done));
    } else {
      lock.unlock();
      call->done(error ? error : leftError());
      lock.lock();
    }
  }
  state.changed.wait(lock, [&] { return state.leaving.stop_requested(); });
  if (!reducer) reducer = std::move(state.reducer);
  lock.unlock();
  reducer.reset();  // ends a pending call; may wait for the other replicas' connections
}

// The thread's function.
void RunReplicas::serve(const std::shared_ptr<State>& state) {
  useGroup(*state);
  state->group.listener.reset();  // must not outlive the server
  std::shared_ptr<const void> held;
  const std::lock_guard lock(state->mutex);
  state->isRunning = false;
  held = std::move(state->held);  // released after the lock
}

void RunReplicas::join() {
  const std::lock_guard lock(state_->mutex);
  if (state_->leaving.stop_requested() || std::exchange(state_->hasBegun, true)) return;
  std::thread([state = state_] { serve(state); }).detach();
  state_->isRunning = true;
}

void RunReplicas::reduce(std::uint64_t step, std::span<float> values,
                         std::function<void(std::exception_ptr)> done) {
  join();
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_->mutex);
    error = state_->leaving.stop_requested() ? leftError() : state_->error;
    if (!error && !state_->reducer) {
      assert(!state_->waiting);
      state_->waiting = Call{step, values, std::move(done)};
      state_->waitingSince = now();
      return;
    }
    if (!error) return state_->reducer->reduce(step, values, std::move(done));
  }
  done(error);
}

void RunReplicas::abort(std::shared_ptr<const void> held) {
  std::optional<Call> waiting;
  if (!state_->leaving.request_stop()) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->isRunning) state_->held = std::move(held);
    waiting = std::exchange(state_->waiting, std::nullopt);
    if (state_->reducer) state_->reducer->abort();
  }
  state_->changed.notify_all();
  if (waiting) waiting->done(leftError());
}

}  // namespace cleave
