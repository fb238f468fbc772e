// A link that notes what an engine asks of it.
#pragma once

#include <vector>

#include "common/pipeline/messages.h"

namespace cleave::test {

class NotingLink : public EngineLink {
 public:
  void send(Message message) override { sent.push_back(std::move(message)); }
  void resend(const Key& key) override { resent.push_back(key); }
  void forget(const Key& key) override { forgotten.push_back(key); }
  void forgetBatch(Phase, std::uint64_t step) override { forgottenBatches.push_back(step); }
  void commit(std::uint64_t step) override { committed.push_back(step); }
  std::vector<Message> sent;
  std::vector<Key> resent;
  std::vector<Key> forgotten;
  std::vector<std::uint64_t> forgottenBatches;
  std::vector<std::uint64_t> committed;
};

}  // namespace cleave::test
