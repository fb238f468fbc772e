#include "common/link/transfer_order.h"

#include <optional>
#include <string>

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

void TransferOrder::takeCredit(const Key& key) {
  if (taken_.size() >= inFlight_) {
    throw ProtocolError("too-many-in-flight", toString(key) + " exceeds the " +
                                                  std::to_string(inFlight_) +
                                                  " micro-batches in flight that were agreed");
  }
  taken_.emplace(std::tuple{key.phase, key.step, key.i}, MemoryCharge(account_, kMicroBatchBytes));
}

void TransferOrder::settled(const Key& key) {
  const bool hasGradient = body_.contains(gradientAt(body_.firstCut));
  const Flow last = key.phase == Phase::train && hasGradient ? gradientAt(body_.firstCut)
                                                             : activationAt(body_.lastCut);
  if (key.flow == last) taken_.erase({key.phase, key.step, key.i});
}

}  // namespace cleave
