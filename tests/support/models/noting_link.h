// A link that records the engine's requests.
#pragma once

#include <vector>

#include "common/engine/messages.h"

namespace cleave::test {

class NotingLink : public EngineLink {
 public:
  void send(Message message) override { sent.push_back(std::move(message)); }
  void commit(std::uint64_t) override { ++committed; }
  std::vector<Message> sent;
  std::size_t committed = 0;
};

}  // namespace cleave::test
