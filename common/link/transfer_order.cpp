#include "common/link/transfer_order.h"

#include <cassert>
#include <optional>
#include <string>
#include <utility>

#include "common/core/error.h"

namespace cleave {
// A tensor of this flow answers another tensor. Returns the flow of that tensor, or, if its cut has
// several tensors, of the first one; nullopt if this flow begins a micro-batch. A gradient at the
// last cut answers the activation there. A tensor that leaves the body answers the one that entered
// it at the other cut.
std::optional<Flow> TransferOrder::requestOf(Flow flow) const {
  if (isGradient(flow)) {
    return flow.cut == body_.lastCut ? activationAt(body_.lastCut) : gradientAt(body_.lastCut);
  }
  return flow.cut == body_.firstCut ? std::nullopt : std::optional(activationAt(body_.firstCut));
}

void TransferOrder::opened(const Key& key) {
  // Steps count from 1, so the first tensor compares greater than {0, 0}.
  Turn& last = at(opened_, key);
  if (const Turn turn{key.step, key.i}; key.step == 0 || turn <= last) {
    throw ProtocolError("bad-key", toString(key) + " arrived after step " +
                                       std::to_string(last.first) + ", micro-batch " +
                                       std::to_string(last.second) +
                                       " of its flow: each tensor is sent once, in order");
  }
  checkAnswers(key);
  if (role_ == Role::server && key.flow == activationAt(body_.firstCut)) takeCredit(key);
  last = {key.step, key.i};
}

void TransferOrder::checkAnswers(const Key& key) {
  const auto request = requestOf(key.flow);
  if (!request) return;
  Key asked = key;
  asked.flow = *request;
  const bool isEvaluated = key.phase == Phase::eval && isGradient(key.flow);
  if (!isEvaluated && Turn{key.step, key.i} <= at(queued_, asked)) return;
  throw ProtocolError("bad-key",
                      toString(key) + " arrived before its " + flowName(*request) + " was sent");
}

void TransferOrder::queued(const Key& key, std::function<bool()> release) {
  assert(Turn(key.step, key.i) > at(queued_, key));
  at(queued_, key) = {key.step, key.i};
  // Gradients are not counted: they return over the link on which the micro-batch arrived.
  if (!hasEdges_ || !isActivation(key.flow) || key.flow != lastReply(key.phase)) return;
  const auto found = taken_.find({key.phase, key.step, key.i});
  if (found == taken_.end() || std::exchange(found->second.isAnswered, true)) return;
  found->second.release = std::move(release);
  ++answered_;
}

// If the last reply and the next micro-batch cross different links, the next one may arrive before
// the acknowledgement of the reply, or before this side knows that the reply was written, because
// its connection has just broken. So another W micro-batches may be in flight of which only the
// reply is left. No more than that: the client waits for replies that have not arrived.
void TransferOrder::takeCredit(const Key& key) {
  ++arrived_;
  if (hasEdges_) releaseProven();
  assert(answered_ <= taken_.size());
  if (taken_.size() - answered_ >= inFlight_ || taken_.size() >= std::size_t{2} * inFlight_) {
    throw ProtocolError("too-many-in-flight", toString(key) + " exceeds the " +
                                                  std::to_string(inFlight_) +
                                                  " micro-batches in flight that were agreed");
  }
  taken_.emplace(MicroBatchKey{key.phase, key.step, key.i},
                 Credit{MemoryCharge(account_, kMicroBatchBytes), arrived_, false, nullptr});
}

// The client sends a micro-batch only when all but the W - 1 before it are done, so it has their
// replies.
void TransferOrder::releaseProven() {
  for (auto each = taken_.begin(); each != taken_.end();) {
    Credit& credit = each->second;
    const bool isProven = credit.isAnswered && credit.number + inFlight_ <= arrived_;
    if (isProven && credit.release && credit.release()) {
      assert(answered_ > 0);
      --answered_;
      each = taken_.erase(each);
    } else {
      ++each;
    }
  }
}

void TransferOrder::settled(const Key& key) {
  if (key.flow != lastReply(key.phase)) return;
  const auto found = taken_.find({key.phase, key.step, key.i});
  if (found == taken_.end()) return;
  assert(!found->second.isAnswered || answered_ > 0);
  if (found->second.isAnswered) --answered_;
  taken_.erase(found);
}

// The tensor whose settling returns the credit of its micro-batch.
Flow TransferOrder::lastReply(Phase phase) const {
  const bool hasGradient = body_.contains(gradientAt(body_.firstCut));
  return phase == Phase::train && hasGradient ? gradientAt(body_.firstCut)
                                              : activationAt(body_.lastCut);
}

}  // namespace cleave
