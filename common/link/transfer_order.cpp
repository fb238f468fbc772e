#include "common/link/transfer_order.h"

#include <optional>
#include <string>

#include "common/core/error.h"

namespace cleave {
namespace {

// The flow of the opposite direction that a tensor of this flow answers.
std::optional<Flow> requestOf(Flow flow) {
  switch (flow) {
    case Flow::activation1:
      return Flow::activation0;
    case Flow::gradient1:
      return Flow::activation1;
    case Flow::gradient0:
      return Flow::gradient1;
    default:
      return std::nullopt;
  }
}

}  // namespace

void TransferOrder::opened(const Key& key) {
  // Steps count from 1, so the very first tensor compares greater than {0, 0}.
  Place& last = at(opened_, key);
  if (const Place place{key.step, key.i}; key.step == 0 || place <= last) {
    throw ProtocolError("bad-key", toString(key) + " arrived after step " +
                                       std::to_string(last.first) + ", micro-batch " +
                                       std::to_string(last.second) +
                                       " of its flow: each tensor is sent once, in order");
  }
  checkAnswers(key);
  if (role_ == Role::server && key.flow == Flow::activation0) takeCredit(key);
  last = {key.step, key.i};
}

void TransferOrder::checkAnswers(const Key& key) {
  const auto request = requestOf(key.flow);
  if (!request) return;
  Key asked = key;
  asked.flow = *request;
  const bool isEvaluated = key.phase == Phase::eval && key.flow != Flow::activation1;
  if (!isEvaluated && Place{key.step, key.i} <= at(queued_, asked)) return;
  throw ProtocolError("bad-key", toString(key) + " arrived before its " +
                                     std::string(flowName(*request)) + " was sent");
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
  const Flow last = key.phase == Phase::train ? Flow::gradient0 : Flow::activation1;
  if (key.flow == last) taken_.erase({key.phase, key.step, key.i});
}

}  // namespace cleave
