// The level of each batch. The client chooses it, and every tensor says which level its batch has,
// so servers need not be told in advance. All links of a place share one object. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "common/topology/codec_level.h"
#include "common/topology/key.h"

namespace cleave {

class CodecLevels {
 public:
  // Client: sets the batch's level. Call before the batch's first tensor is sent.
  void set(Phase phase, std::uint64_t step, CodecLevel level);
  // CodecLevel::own if neither set() nor arrived() was called for the batch.
  CodecLevel of(const Key& key) const;
  // Call for each tensor that arrives, before one of the same batch is sent. At the server, the
  // first tensor of a batch decides the batch's level. Throws ProtocolError "bad-tensor" if the
  // batch has another level.
  void arrived(const Key& key, CodecLevel level);

 private:
  using ByStep = std::map<std::uint64_t, CodecLevel>;
  ByStep& levelsIn(Phase phase) { return levels_[static_cast<std::size_t>(phase)]; }
  void insert(Phase phase, std::uint64_t step, CodecLevel level);

  mutable std::mutex mutex_;
  std::array<ByStep, kPhases> levels_;  // of the latest batches
};

}  // namespace cleave
