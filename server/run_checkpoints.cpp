#include "server/run_checkpoints.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/sha256.h"
#include "server/finished_runs.h"

namespace cleave {

void RunCheckpoints::save(std::shared_ptr<Snapshot> snapshot, std::function<void(Saved)> done) {
  boost::asio::post(thread_, [self = shared_from_this(), snapshot = std::move(snapshot),
                              done = std::move(done)]() mutable {
    try {
      // Removes old checkpoints first, because there may be no room for another one.
      self->disk_->giveBack(self->store_.removeExcept(snapshot->keep));
    } catch (const Error&) {
      // A later save() removes the old checkpoints.
    }
    const Saved saved = self->write(*snapshot);
    snapshot.reset();
    done(saved);
  });
}

Saved RunCheckpoints::write(const Snapshot& snapshot) {
  Saved saved;
  saved.step = snapshot.state.engine.applied;
  saved.seconds = snapshot.seconds;
  try {
    if (snapshot.error) std::rethrow_exception(snapshot.error);
    const std::vector<std::byte> file = checkpointFile(snapshot.state, snapshot.stage);
    if (snapshot.hasReplicas) saved.body = sha256Of(textOf(snapshot.stage));
    const std::vector<HeldBytes> samples = samplesFile(snapshot.state);
    std::uint64_t bytes = file.size();
    for (const HeldBytes& piece : samples) bytes += piece.size();
    if (!disk_->take(bytes)) {
      const RunError error = disk_->error("the checkpoint", bytes);
      throw RunError(error.code(), std::string(error.what()) + "; " + error.hint());
    }
    try {
      const CheckpointInfo info =
          store_.write(saved.step, textOf(file), fingerprint_, {snapshot.samples, samples});
      syncRecords();
      base_.add(info);
      saved.sha256 = info.sha256;
      saved.bytes = bytes;
    } catch (...) {
      store_.removeStep(saved.step);
      disk_->giveBack(bytes);
      throw;
    }
  } catch (const Error& error) {
    saved.code = error.code();
    saved.sentence = error.what();
  } catch (const std::exception& error) {
    saved.code = "internal-error";
    saved.sentence = error.what();
  }
  return saved;
}

// Ignores errors of the recorder that come from another run's records.
void RunCheckpoints::syncRecords() {
  try {
    recorder_.sync();
  } catch (const RunError&) {
    if (files_->writeFailure() || files_->isOverBudget()) throw;
  }
  if (const auto failure = files_->writeFailure()) {
    throwCannotWrite(failure->path, "rows could not be written", failure->error);
  }
}

void RunCheckpoints::finish(bool keepsNewest) {
  boost::asio::post(thread_, [self = shared_from_this(), keepsNewest] {
    try {
      const auto all = self->store_.list();  // newest first
      std::vector<std::uint64_t> kept;
      if (keepsNewest && !all.empty()) kept = {all.front().step};
      if (!kept.empty()) markFinished(diskFiles(), self->files_->folder());
      self->disk_->giveBack(self->store_.removeExcept(kept));
      self->disk_->mayReclaim();
    } catch (const Error&) {
      // `cleave-server runs remove` removes them.
    }
  });
}

Checkpoint RunCheckpoints::read(std::uint64_t step) {
  const auto all = store_.list();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& info) { return info.step == step; });
  if (found == all.end()) {
    throw badCheckpoint("there is no checkpoint of step " + std::to_string(step));
  }
  base_.add(*found);
  return {*found, store_.read(*found)};
}

}  // namespace cleave
