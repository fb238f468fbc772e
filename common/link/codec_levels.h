// The level of each batch. The client chooses it, and every tensor says which level its batch has,
// so servers need not be told in advance. All links of a place share one object. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "common/topology/codec_level.h"
#include "common/topology/key.h"

namespace cleave {

class CodecLevels {
 public:
  // Client: sets the level of a batch before its first tensor is sent.
  void set(Phase phase, std::uint64_t step, CodecLevel level);
  // CodecLevel::own if neither set() nor arrived() was called for the batch.
  CodecLevel of(const Key& key) const;
  // Call for each tensor that arrives, before one of the same batch is sent. At the server, the
  // first tensor of a batch decides the batch's level. Throws ProtocolError "bad-tensor" if the
  // batch has another level.
  void arrived(const Key& key, CodecLevel level);

 private:
  using Batch = std::pair<Phase, std::uint64_t>;
  void insert(const Batch& batch, CodecLevel level);

  mutable std::mutex mutex_;
  std::map<Batch, CodecLevel> levels_;  // of the latest batches
};

}  // namespace cleave
