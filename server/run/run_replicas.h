// A run's membership in the group of its body's replicas.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/replicas/gradient_reducer.h"

namespace cleave {

// Joins the group on a thread of its own, because that waits for the other replicas.
class RunReplicas {
 public:
  // `groupName`: see joinReplicas().
  RunReplicas(ReplicaGroup group, std::string groupName);
  // Like abort().
  ~RunReplicas();
  RunReplicas(const RunReplicas&) = delete;
  RunReplicas& operator=(const RunReplicas&) = delete;

  // Any thread. Begins to join the group; further calls do nothing. Call when the client has sent
  // the first tensor: it then has connected to all replicas, and this connection is the one that it
  // uses.
  void join();
  // One thread at a time. Like GradientReducer::reduce(); also before the group is joined. `done`
  // is also called with the errors of joinReplicas(): "replica-unreachable" if the call has waited
  // for the group's timeout (and for at most twice as long).
  void reduce(std::uint64_t step, std::span<float> values,
              std::function<void(std::exception_ptr)> done);
  // Any thread. Leaves the group: a pending call and all later ones fail with "replica-lost", here
  // and in the other replicas. Only the first call has an effect. Keeps `held` until the group has
  // been left: until then, the values of a pending call and its `done` may be in use.
  void abort(std::shared_ptr<const void> held = nullptr);

 private:
  struct State;
  static std::unique_ptr<GradientReducer> joinGroup(State& state);
  static void useGroup(State& state);
  static void serve(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace cleave
