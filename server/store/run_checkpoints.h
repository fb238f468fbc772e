// The checkpoints of one run in the server's store. They count towards the identity's share of the
// disk. Files are written, read and removed on the store's thread, in the order of the calls.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/engine/messages.h"
#include "common/files/record.h"
#include "common/record/run_files.h"
#include "common/run/part_checkpoints.h"
#include "server/store/disk_share.h"

namespace cleave {

// Call in a catch block: the answer to a client whose state could not be saved gets the code and
// the sentence of the exception.
void setFailure(Saved& saved);

class RunCheckpoints : public std::enable_shared_from_this<RunCheckpoints> {
 public:
  // `thread`: the store's thread. `spec`: digestOf() the run spec. `files`: the run's records,
  // which `recorder` writes. `recorder` is borrowed.
  RunCheckpoints(CheckpointStore store, std::shared_ptr<DiskShare> disk, std::string spec,
                 std::string fingerprint, Recorder& recorder, std::shared_ptr<RunFiles> files,
                 boost::asio::any_io_executor thread)
      : checkpoints_(std::move(store), std::move(fingerprint)),
        disk_(std::move(disk)),
        spec_(std::move(spec)),
        recorder_(recorder),
        files_(std::move(files)),
        thread_(std::move(thread)) {}

  struct Snapshot : PartSnapshot {
    bool hasReplicas = false;         // the client compares the digests of `stage`
    double seconds = 0;               // time to copy it
    std::vector<std::uint64_t> keep;  // checkpoints of all other steps may be removed
  };
  // Any thread. The checkpoint relative to which the kept samples of the next snapshot are saved;
  // step 0: none.
  CheckpointInfo baseOfSamples(const std::vector<std::uint64_t>& committed) {
    return checkpoints_.baseOfSamples(committed);
  }
  // Any thread. Writes the checkpoint after the step `snapshot.state.engine.applied`, and makes all
  // records written so far durable. The snapshot is destroyed, then `done` is called on the store's
  // thread.
  void save(std::shared_ptr<Snapshot> snapshot, std::function<void(Saved)> done);
  // Any thread. Call when the run is done. Removes all checkpoints, or keeps the newest one, from
  // which the run can be continued for more epochs.
  void finish(bool keepsNewest);
  // Reads a checkpoint's file after checking its digest. Throws RunError "bad-checkpoint". Call it
  // before the first save().
  Checkpoint read(std::uint64_t step);
  // Removes the checkpoints of later steps, which the run computes again. Call it before the first
  // save().
  void forgetAfter(std::uint64_t step);
  // The content of what read() returned, with its kept samples. Points into `checkpoint`. Throws
  // RunError "bad-checkpoint" or "run-unreadable". Call it before the first save().
  CheckpointContent contentOf(const Checkpoint& checkpoint) const {
    return readCheckpoint(checkpoints_.store(), checkpoint, spec_);
  }

  const std::string& spec() const { return spec_; }
  const std::string& fingerprint() const { return checkpoints_.fingerprint(); }

 private:
  Saved write(const Snapshot& snapshot);
  RunError noRoomFor(std::uint64_t bytes) const;
  void syncRecords();

  PartCheckpoints checkpoints_;
  const std::shared_ptr<DiskShare> disk_;
  const std::string spec_;
  Recorder& recorder_;
  const std::shared_ptr<RunFiles> files_;
  const boost::asio::any_io_executor thread_;
};

}  // namespace cleave
