#include "server/store/run_checkpoints.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/files/sha256.h"
#include "server/store/finished_runs.h"

namespace cleave {

void setFailure(Saved& saved) {
  try {
    throw;
  } catch (const Error& error) {
    saved.code = error.code();
    saved.sentence = error.what();
  } catch (const std::exception& error) {
    saved.code = "internal-error";
    saved.sentence = error.what();
  }
}

void RunCheckpoints::save(std::shared_ptr<Snapshot> snapshot, std::function<void(Saved)> done) {
  boost::asio::post(thread_, [self = shared_from_this(), snapshot = std::move(snapshot),
                              done = std::move(done)]() mutable {
    try {
      // Removes old checkpoints first, because there may be no room for another one.
      self->disk_->giveBack(self->checkpoints_.store().removeExcept(snapshot->keep));
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
    std::uint64_t taken = 0;
    try {
      const CheckpointInfo info = checkpoints_.write(snapshot, [&](std::uint64_t bytes) {
        if (!disk_->take(bytes)) throw noRoomFor(bytes);
        taken = bytes;
      });
      syncRecords();
      if (snapshot.hasReplicas) saved.body = sha256Of(textOf(snapshot.stage));
      saved.sha256 = info.sha256;
      saved.bytes = taken;
    } catch (...) {
      if (taken > 0) checkpoints_.store().removeStep(saved.step);
      disk_->giveBack(taken);
      throw;
    }
  } catch (...) {
    setFailure(saved);
  }
  return saved;
}

// The client's log has the sentence only.
RunError RunCheckpoints::noRoomFor(std::uint64_t bytes) const {
  const RunError error = disk_->error("the checkpoint", bytes);
  return {error.code(), std::string(error.what()) + "; " + error.hint()};
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
      const auto all = self->checkpoints_.store().list();  // newest first
      std::vector<std::uint64_t> kept;
      if (keepsNewest && !all.empty()) kept = {all.front().step};
      if (!kept.empty()) markFinished(diskFiles(), self->files_->folder());
      self->disk_->giveBack(self->checkpoints_.store().removeExcept(kept));
      self->disk_->mayReclaim();
    } catch (const Error&) {
      // `cleave-server runs remove` removes them.
    }
  });
}

void RunCheckpoints::forgetAfter(std::uint64_t step) {
  disk_->giveBack(checkpoints_.store().removeAfter(step));
}

Checkpoint RunCheckpoints::read(std::uint64_t step) {
  const auto all = checkpoints_.store().list();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& info) { return info.step == step; });
  if (found == all.end()) {
    throw badCheckpoint("there is no checkpoint of step " + std::to_string(step));
  }
  checkpoints_.continued(*found);
  return {*found, checkpoints_.store().read(*found)};
}

}  // namespace cleave
