// Sums gradients over the replicas of a body.
//
//   auto listener = std::make_shared<ReplicaListener>("10.0.0.2:4810");   once per server process
//   auto reducer = joinReplicas({hosts, rank, timeout, listener}, runId + attempt + token);
//   reducer->reduce(step, gradients, done);
//
// Network: each replica has a connection to replica 0's group port, through which the replicas
// agree on each call (group_channel.h). The values cross connections of Gloo between all pairs of
// replicas, on ports that the system chooses. Neither is encrypted, and Gloo's connections are not
// authenticated, so the replicas need a private network that no other machine can reach.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

class ReplicaListener;  // replica_listener.h

// All functions may be called on any thread, but by one thread at a time, except abort(). All
// replicas must make the same calls in the same order.
//
// A call waits for the slowest replica, without a limit while that replica is connected. It fails
// with RunError "replica-lost" at most `timeout` after a replica has ended or no longer replies,
// and with "replica-differs" in all replicas if their calls differ in step or size. After an
// error, all further calls fail with the same error: join a new group.
class GradientReducer {
 public:
  // Ends a pending call with "replica-lost". Blocks for at most 5 s, if another replica does not
  // reply. Must not be called by `done`.
  virtual ~GradientReducer() = default;

  // Replaces `values` by ((x0 + x1) + x2) + …, where xr are the values of replica r: all replicas
  // get the same bits, those of a serial sum (which bits a NaN has is not specified). NaN and
  // infinity are summed like other values.
  // Returns immediately. `done` is called on the reducer's thread, with nullptr or the Error; it
  // may make the next call. `values` must stay alive until then, and are undefined after an error.
  // At most one call may be pending. Temporary memory: at most 4 MiB per other replica.
  virtual void reduce(std::uint64_t step, std::span<float> values,
                      std::function<void(std::exception_ptr)> done) = 0;

  // Ends a pending call with "replica-lost", and all later ones. The other replicas' calls fail
  // too. May be called on any thread, at any time.
  virtual void abort() = 0;
};

struct ReplicaGroup {
  std::vector<std::string> hosts;    // "HOST:PORT": the group port of each replica, by rank
  int rank = 0;                      // of this replica
  std::chrono::seconds timeout{30};  // to join; without a reply of a replica; for 1 MiB of values
  // The server's listener, on the port in hosts[rank]. Nullptr: the reducer listens itself, so that
  // one group at a time can use the port. Not used by a single replica, which needs no network.
  std::shared_ptr<ReplicaListener> listener = nullptr;
};

// Joins the group with the other replicas. `groupName` must be the same in all replicas, different
// for each attempt of each run, and contain a random token of 128 bits: replicas are admitted by
// it. Blocks for at most `timeout` (a server calls it on a worker thread). Throws RunError
// "replica-unreachable" if a replica is missing, "replica-differs" if the replicas disagree about
// their number or two have the same rank, and the errors of ReplicaListener.
// A request to `stop`, or the end of another replica that has joined, ends the joining with an
// error.
std::unique_ptr<GradientReducer> joinReplicas(const ReplicaGroup& group, std::string_view groupName,
                                              const std::stop_token& stop = {});

}  // namespace cleave
