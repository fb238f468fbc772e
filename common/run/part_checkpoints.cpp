#include "common/run/part_checkpoints.h"

#include "common/core/bytes.h"

namespace cleave {

CheckpointInfo PartCheckpoints::write(const PartSnapshot& snapshot,
                                      const std::function<void(std::uint64_t bytes)>& reserve) {
  if (snapshot.error) std::rethrow_exception(snapshot.error);
  const std::vector<std::byte> file = checkpointFile(snapshot.state, snapshot.stage);
  const std::vector<HeldBytes> samples = samplesFile(snapshot.state);
  std::uint64_t bytes = file.size();
  for (const HeldBytes& piece : samples) bytes += piece.size();
  if (reserve) reserve(bytes);
  CheckpointInfo info = store_.write(snapshot.state.engine.applied, textOf(file), fingerprint_,
                                     {snapshot.samples, samples});
  base_.add(info);
  return info;
}

}  // namespace cleave
