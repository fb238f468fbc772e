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

void Completions::add(std::shared_ptr<Completion> completion) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(completion));
  }
  device_.notify();
}

std::vector<std::shared_ptr<Completions::Completion>> Completions::takeAll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

EngineWorker::EngineWorker(const EngineOptions& options, std::shared_ptr<EngineLink> link,
                           std::shared_ptr<Mailbox> mailbox, ActionTable table,
                           std::function<void()> finished,
                           std::function<void(std::exception_ptr)> failed, DeviceQueue* queue)
    : link_(std::move(link)),
      mailbox_(std::move(mailbox)),
      engine_(options, *link_),
      table_(std::move(table)),
      finished_(std::move(finished)),
      failed_(std::move(failed)),
      queue_(queue),
      completions_(std::make_shared<Completions>(mailbox_->device())) {}

EngineWorker::~EngineWorker() {
  if (queue_ != nullptr) queue_->drain();
}

bool EngineWorker::receiveAll() {
  std::vector<Message> messages = mailbox_->takeAll();
  for (Message& message : messages) engine_.receive(std::move(message));
  return !messages.empty();
}

bool EngineWorker::completeAll() {
  const auto done = completions_->takeAll();
  for (const auto& completion : done) {
    complete(completion->token, std::move(completion->result), completion->seconds());
  }
  return !done.empty();
}

void EngineWorker::complete(std::uint64_t token, Result result, double seconds) {
  const bool wasDone = engine_.batchDone();
  engine_.complete(token, std::move(result), seconds);
  if (!wasDone && engine_.batchDone()) finished_();
  endIfDrained();
}

void EngineWorker::drain(std::function<void()> drained) {
  drained_ = std::move(drained);
  endIfDrained();
}

void EngineWorker::endIfDrained() {
  if (!drained_ || stopped_ || !engine_.batchDone()) return;
  stopped_ = true;
  drained_();
}

void EngineWorker::issue(Work work) {
  const std::uint64_t token = work.token;
  const ActionFunction& function = table_[static_cast<std::size_t>(work.kind)];
  if (queue_ == nullptr) {
    const SteadyTime start = now();
    Result result = function(std::move(work));
    return complete(token, std::move(result), secondsSince(start));
  }
  auto completion = std::make_shared<Completions::Completion>();
  completion->token = token;
  queue_->begin();
  completion->result = function(std::move(work));
  // Whoever calls back only hands the completion on: the device thread alone reads and destroys it.
  Completions::Completion& kept = *completion;
  kept.seconds = queue_->end([completions = completions_, completion]() mutable {
    completions->add(std::move(completion));
  });
}

bool EngineWorker::runOne() noexcept {
  if (stopped_) return false;
  try {
    // A message or a completion alone counts as progress: whoever waits for the engine's state must
    // look at it.
    const bool completed = completeAll();
    const bool progressed = receiveAll() || completed;
    auto work = engine_.next();
    if (!work) return progressed;
    issue(std::move(*work));
    return true;
  } catch (...) {
    stopped_ = true;
    failed_(std::current_exception());
    return true;
  }
}

}  // namespace cleave
