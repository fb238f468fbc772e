#include "common/pipeline/worker.h"

#include <utility>

#include "common/core/clock.h"

namespace cleave {

void Mailbox::deliver(Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (messages_.size() >= most_) {
      throw ProtocolError("too-many-in-flight",
                          "more than " + std::to_string(most_) + " messages wait to be dealt with");
    }
    messages_.push_back(std::move(message));
  }
  device_.notify();
}

std::vector<Message> Mailbox::takeAll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(messages_, {});
}

EngineWorker::EngineWorker(const EngineOptions& options, std::shared_ptr<EngineLink> link,
                           std::shared_ptr<Mailbox> mailbox, ActionTable table,
                           std::function<void()> finished,
                           std::function<void(std::exception_ptr)> failed)
    : link_(std::move(link)),
      mailbox_(std::move(mailbox)),
      engine_(options, *link_),
      table_(std::move(table)),
      finished_(std::move(finished)),
      failed_(std::move(failed)) {}

bool EngineWorker::receiveAll() {
  std::vector<Message> messages = mailbox_->takeAll();
  for (Message& message : messages) engine_.receive(std::move(message));
  return !messages.empty();
}

bool EngineWorker::runOne() noexcept {
  if (stopped_) return false;
  try {
    const bool received = receiveAll();
    auto work = engine_.next();
    // A message alone counts as progress: whoever waits for the engine's state must look at it.
    if (!work) return received;
    const std::uint64_t token = work->token;
    const ActionKind kind = work->kind;
    const bool wasDone = engine_.batchDone();
    const SteadyTime start = now();
    Result result = table_[static_cast<std::size_t>(kind)](std::move(*work));
    engine_.complete(token, std::move(result), secondsSince(start));
    if (!wasDone && engine_.batchDone()) finished_();
    return true;
  } catch (...) {
    stopped_ = true;
    failed_(std::current_exception());
    return true;
  }
}

}  // namespace cleave
