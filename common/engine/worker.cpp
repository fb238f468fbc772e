#include "common/engine/worker.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave {

void Mailbox::deliver(Message message, std::size_t peer) {
  {
    const std::lock_guard lock(mutex_);
    if (messages_.size() >= max_) {
      throw ProtocolError("too-many-in-flight", "more than " + std::to_string(max_) +
                                                    " messages are waiting to be processed");
    }
    messages_.push_back({peer, std::move(message)});
  }
  device_.notify();
}

std::size_t Mailbox::size() const {
  const std::lock_guard lock(mutex_);
  return messages_.size();
}

std::vector<Mailbox::Delivered> Mailbox::takeAll() {
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

bool Completions::isEmpty() const {
  const std::lock_guard lock(mutex_);
  return done_.empty();
}

Duration durationOf(ActionKind kind) {
  const bool isOfBatch = kind == ActionKind::bodyForward || kind == ActionKind::bodyBackward ||
                         kind == ActionKind::bodyWeights;
  return isOfBatch ? Duration::ofBatch : Duration::ofModel;
}

RunError actionTooLong(const std::string& sentence, Duration duration) {
  const bool isOfBatch = duration == Duration::ofBatch;
  return RunError(
             "action-too-long", sentence,
             isOfBatch
                 ? "use a smaller batch, more micro-batches, or fewer layers in the body, or ask "
                   "the server's operator to raise limits.action_seconds"
                 : "ask the server's operator to raise limits.action_seconds, or move model.cuts "
                   "so that the body has fewer layers; the size of the batch does not matter here")
      .about(isOfBatch ? "train.micro_batches" : "model.cuts");
}

EngineWorker::EngineWorker(std::unique_ptr<Engine> engine, std::shared_ptr<Mailbox> mailbox,
                           ActionTable table, std::function<void()> finished,
                           std::function<void(std::exception_ptr)> failed, DeviceQueue* queue,
                           std::shared_ptr<TraceRecorder> trace)
    : engine_(std::move(engine)),
      mailbox_(std::move(mailbox)),
      table_(std::move(table)),
      finished_(std::move(finished)),
      failed_(std::move(failed)),
      queue_(queue),
      trace_(std::move(trace)),
      completions_(std::make_shared<Completions>(mailbox_->device())) {}

EngineWorker::~EngineWorker() {
  if (queue_ != nullptr && !build_) queue_->drain();
}

bool EngineWorker::receiveAll() {
  // Set before the messages leave the mailbox, so that hasWork() is never false in between.
  if (waiting() > 0) hasWork_ = true;
  auto messages = mailbox_->takeAll();
  for (auto& [peer, message] : messages) engine_->receive(peer, std::move(message));
  return !messages.empty();
}

bool EngineWorker::completeAll() {
  const auto done = completions_->takeAll();
  for (const auto& completion : done) {
    if (completion->error) std::rethrow_exception(completion->error);
    const IssuedAction& action = completion->action;
    double seconds = 0;
    if (completion->seconds) {
      seconds = completion->seconds();
    } else if (action.kind == ActionKind::reduce) {
      seconds = secondsBetween(action.begin, completion->end);
    } else {
      seconds = secondsBetween(std::max(action.begin, lastEnd_), completion->end);
      lastEnd_ = completion->end;
      lastSeconds_ = seconds;
    }
    complete(action, std::move(completion->result), completion->end, seconds);
  }
  return !done.empty();
}

// A report takes almost no time. In a turn of its own, it would wait until the other runs on the
// device have caught up, and its client would wait for it.
void EngineWorker::issueReport() {
  if (engine_->isReportNext()) issue(*engine_->next());
}

// One action may wait in the process while another one runs, so that the process does not have to
// wait. After a long one, other runs would wait too long for two.
bool EngineWorker::isFull() const {
  constexpr double kLong = 0.05;
  const std::size_t max = lastSeconds_ < kLong ? 2 : 1;
  return table_.process != nullptr && underWay_ - (isReducing_ ? 1 : 0) >= max;
}

std::optional<DeviceWorker::Started> EngineWorker::started() const noexcept {
  if (stopped_ || table_.process == nullptr) return std::nullopt;
  return table_.process->started();
}

// Call in a handler of the exception.
void EngineWorker::fail() {
  stopped_ = true;
  failed_(std::current_exception());
  becomeIdle();
}

void EngineWorker::whenIdle(std::function<void()> then) {
  {
    const std::lock_guard lock(idleMutex_);
    whenIdle_ = std::move(then);
  }
  becomeIdle();
}

void EngineWorker::becomeIdle() {
  std::function<void()> then;
  {
    const std::lock_guard lock(idleMutex_);
    if (hasWork() && !stopped_) return;
    then = std::exchange(whenIdle_, nullptr);
  }
  if (then) then();
}

bool EngineWorker::collect() noexcept {
  if (stopped_ || table_.process == nullptr) return false;
  try {
    table_.process->collect();
    const bool completed = completeAll();
    if (completed) issueReport();
    return completed;
  } catch (...) {
    fail();
    return true;
  }
}

bool EngineWorker::mayHaveWork() const noexcept {
  return !stopped_ && (!idleSince_ || waiting() > 0 || !completions_->isEmpty());
}

void EngineWorker::begins(const Work& work) {
  const bool forward = work.kind == ActionKind::headForward || work.kind == ActionKind::bodyForward;
  if (!forward || !work.isFirst) return;
  const bool follows =
      work.at.phase == Phase::train && lastBackward_ && engine_->batchesInProgress() == 1;
  betweenSteps_ = follows ? std::optional(secondsSince(*lastBackward_)) : std::nullopt;
  lastBackward_.reset();
}

void EngineWorker::complete(const IssuedAction& action, Result result, SteadyTime end,
                            double seconds) {
  const bool backward = action.kind == ActionKind::headBackward ||
                        action.kind == ActionKind::bodyBackward ||
                        action.kind == ActionKind::bodyWeights;
  if (backward) lastBackward_ = end;
  assert(underWay_ > 0);
  --underWay_;
  if (trace_) trace_->ran(action.kind, action.at, action.idleSince, end, seconds);
  // The duration of a reduction depends on the other replicas.
  if (action.kind == ActionKind::reduce) {
    isReducing_ = false;
  } else {
    checkSeconds("an action (" + std::string(actionName(action.kind)) + ")", seconds,
                 durationOf(action.kind));
  }
  const std::uint64_t ended = engine_->batchesEnded();
  engine_->complete(action.token, std::move(result), seconds);
  if (engine_->batchesEnded() > ended) finished_();
}

void EngineWorker::build() {
  const SteadyTime start = now();
  table_ = std::exchange(build_, nullptr)();
  checkSeconds("building the model", secondsSince(start), Duration::ofModel);
}

void EngineWorker::checkSeconds(const std::string& what, double seconds, Duration duration) const {
  if (seconds <= maxSeconds_) return;
  throw actionTooLong(what + " took " + durationText(seconds) + "; the limit is " +
                          durationText(maxSeconds_) +
                          " (limits.action_seconds in the server's configuration)",
                      duration);
}

void EngineWorker::start(const StartFunction& function, Work work) {
  const auto completion = std::make_shared<Completions::Completion>();
  completion->action = {work.token, work.kind, work.at, std::exchange(idleSince_, std::nullopt),
                        now()};
  if (queue_ != nullptr) queue_->begin();
  function(std::move(work),
           [completions = completions_, completion](Result result, std::exception_ptr error) {
             completion->end = now();
             completion->result = std::move(result);
             completion->error = std::move(error);
             completions->add(completion);
           });
  if (queue_ != nullptr) queue_->end([] {});
}

void EngineWorker::issue(Work work) {
  assert(work.kind != ActionKind::reduce || !isReducing_);
  begins(work);
  ++underWay_;
  hasWork_ = true;
  isReducing_ |= work.kind == ActionKind::reduce;
  if (const StartFunction& function = table_.starts[indexOf(work.kind)]) {
    return start(function, std::move(work));
  }
  const IssuedAction action{work.token, work.kind, work.at, std::exchange(idleSince_, std::nullopt),
                            now()};
  const ActionFunction& function = table_[indexOf(work.kind)];
  if (queue_ == nullptr) {
    Result result = function(std::move(work));
    const SteadyTime end = now();
    return complete(action, std::move(result), end, secondsBetween(action.begin, end));
  }
  auto completion = std::make_shared<Completions::Completion>();
  completion->action = action;
  queue_->begin();
  completion->result = function(std::move(work));
  // The callback only queues the completion; the device thread reads and destroys it.
  Completions::Completion& kept = *completion;
  kept.seconds = queue_->end([completions = completions_, completion]() mutable {
    completion->end = now();
    completions->add(std::move(completion));
  });
}

bool EngineWorker::runOne() noexcept {
  if (stopped_) return false;
  try {
    if (build_) {
      if (buildClaimed_.exchange(true)) return false;
      build();
      return true;
    }
    // A message or a completion alone counts as progress: code that waits on the engine's state
    // must check it again.
    const bool completed = completeAll();
    const bool progressed = receiveAll() || completed;
    if (isFull()) return progressed;
    auto work = engine_->next();
    if (!work) {
      if (!idleSince_) idleSince_ = now();
      hasWork_ = underWay_ > 0;
      becomeIdle();
      return progressed;
    }
    issue(std::move(*work));
    issueReport();
    return true;
  } catch (...) {
    fail();
    return true;
  }
}

}  // namespace cleave
