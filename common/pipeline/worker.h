// One run's work on the device: an engine, the functions its actions call, and the messages that
// wait for it.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "common/core/executor.h"
#include "common/pipeline/engine.h"

namespace cleave {

// Client and server differ in these alone. May throw: the run ends with that error.
using ActionFunction = std::function<Result(Work work)>;
using ActionTable = std::array<ActionFunction, kActionKinds>;

// Where a link leaves what has arrived, until the device thread looks. Any thread. A peer that
// sends more than what was agreed, while the device is busy with others, gets ProtocolError
// "too-many-in-flight".
class Mailbox {
 public:
  Mailbox(DeviceExecutor& device, std::uint32_t inFlight)
      : device_(device), most_(std::size_t{8} * inFlight + 64) {}
  void deliver(Message message);
  std::vector<Message> takeAll();

 private:
  DeviceExecutor& device_;
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<Message> messages_;
};

class EngineWorker : public DeviceWorker {
 public:
  // `finished` is called after the action that ended a batch, and `failed` once, after which
  // nothing runs any more. Both on the device thread.
  EngineWorker(const EngineOptions& options, std::shared_ptr<EngineLink> link,
               std::shared_ptr<Mailbox> mailbox, ActionTable table, std::function<void()> finished,
               std::function<void(std::exception_ptr)> failed);

  bool runOne() noexcept override;

  // Any thread: nothing runs any more once the action under way is done.
  void stop() { stopped_ = true; }

  // Device thread.
  Engine& engine() { return engine_; }

 private:
  bool receiveAll();

  const std::shared_ptr<EngineLink> link_;
  const std::shared_ptr<Mailbox> mailbox_;
  Engine engine_;
  const ActionTable table_;
  const std::function<void()> finished_;
  const std::function<void(std::exception_ptr)> failed_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace cleave
