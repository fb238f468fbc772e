// A replica's view of its group: named values, which any replica sets and all replicas can read.
//
//   replica 1 ──┐
//   replica 2 ──┼── hub (group_hub.h), on replica 0's server
//   replica 0 ──┘   replica 0 connects to its own hub too
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/core/error.h"
#include "common/core/units.h"
#include "common/replicas/gradient_reducer.h"

namespace cleave {

inline constexpr double kJoinRetrySeconds = 1;  // of "replica-unreachable": another try may succeed
inline constexpr std::size_t kMaxGroupBytes = 16 * kMiB;  // of all values of a group

class GroupHub;
class GroupMembership;  // group_channel.cpp

// May be used on any thread, except the listener's.
class GroupChannel {
 public:
  // Joins the group: see joinReplicas(). `lost` is called when the group ends, for whatever reason:
  // once, on the listener's thread or on that of leave(). A request to `stop` ends the joining.
  GroupChannel(const ReplicaGroup& group, std::string_view groupName, std::function<void()> lost,
               const std::stop_token& stop = {});
  // Leaves. Blocks until all values that were set are sent, for at most 5 s.
  ~GroupChannel();

  // Sets a value in all replicas, this one too. At most kMaxKeyBytes and kMaxValueBytes
  // (group_connection.h); all values of the group together: kMaxGroupBytes.
  void set(const std::string& key, const std::string& value);
  // Waits for the value; take() also removes it, in this replica. Throws RunError "replica-lost" if
  // the group ends before the value arrives, or after `timeout`.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  std::string take(const std::string& key);
  bool has(const std::string& key) const;

  // Ends the group for all replicas; get() and take() no longer wait.
  void leave();

 private:
  void closeAll();

  std::shared_ptr<ReplicaListener> listener_;
  std::shared_ptr<GroupHub> hub_;  // replica 0; otherwise nullptr
  std::shared_ptr<GroupMembership> membership_;
};

}  // namespace cleave
