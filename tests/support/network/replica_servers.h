// The servers of a group of replicas on the loopback interface, in this process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/replicas/gradient_reducer.h"
#include "common/replicas/replica_listener.h"

namespace cleave::test {

class ReplicaServers {
 public:
  explicit ReplicaServers(std::size_t replicas,
                          std::chrono::seconds timeout = std::chrono::seconds(30))
      : timeout_(timeout) {
    for (std::size_t rank = 0; rank < replicas; ++rank) {
      listeners_.push_back(std::make_shared<ReplicaListener>("127.0.0.1:0"));
      hosts_.push_back("127.0.0.1:" + std::to_string(listeners_.back()->port()));
    }
  }

  std::size_t size() const { return hosts_.size(); }
  const std::vector<std::string>& hosts() const { return hosts_; }
  ReplicaGroup group(std::size_t rank) const {
    return {hosts_, static_cast<int>(rank), timeout_, listeners_[rank]};
  }

 private:
  std::chrono::seconds timeout_;
  std::vector<std::shared_ptr<ReplicaListener>> listeners_;
  std::vector<std::string> hosts_;
};

}  // namespace cleave::test
