// The connections of Gloo between all pairs of replicas.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace c10d {  // NOLINT(readability-identifier-naming): LibTorch's name
class ProcessGroupGloo;
}  // namespace c10d

namespace cleave {

class GroupChannel;
class LentChannel;  // gloo_group.cpp

class GlooGroup : public std::enable_shared_from_this<GlooGroup> {
 public:
  // A transfer in progress. Its memory must stay alive until wait() or close().
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    std::size_t peer = 0;
  };

  explicit GlooGroup(std::vector<std::string> hosts);
  ~GlooGroup();

  // Connects; exchanges Gloo's addresses through the channel, which must outlive the connections.
  // Blocks for at most `timeout`, or until interrupt(). Throws RunError "replica-unreachable".
  // Gloo's threads inherit the caller's signal mask. Call on the thread that makes the transfers.
  void open(GroupChannel& channel, std::size_t rank, std::chrono::milliseconds timeout);
  void close();

  // Transfers between two replicas with the same tag arrive in the order in which they were sent.
  // Throws RunError "replica-lost".
  Transfer send(std::size_t peer, std::span<float> values, int tag);
  Transfer receive(std::size_t peer, std::span<float> values, int tag);
  // Throws RunError "replica-lost" if the transfer fails, is interrupted, or takes longer than
  // `timeout`.
  void wait(const Transfer& transfer, std::chrono::milliseconds timeout);

  // Ends open() and all transfers, also later ones. Any thread.
  void interrupt();

 private:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroupGloo&)>;
  void connect(const std::shared_ptr<LentChannel>& channel, std::size_t rank,
               std::chrono::milliseconds timeout);
  Transfer begin(std::size_t peer, const Start& start);

  const std::vector<std::string> hosts_;
  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  bool isInterrupted_ = false;
  std::optional<std::string> fault_;  // why open() failed
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<c10::intrusive_ptr<c10d::Work>> pending_;
};

}  // namespace cleave
