// Records what a run's servers see, in a folder of its own: the tensors of each batch, as their
// receivers decode them, with the numbers of the samples. docs/privacy.md describes the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "client/data/samples/loader.h"
#include "common/codec/tensor.h"
#include "common/codec/traffic_observer.h"
#include "common/files/record.h"
#include "common/topology/division.h"
#include "common/topology/step.h"

namespace cleave {

struct TrafficOptions {
  std::string folder{};       // empty: nothing is recorded
  std::uint64_t steps = 100;  // training steps, from the first one
  std::uint64_t mib = 1024;   // of all recorded tensors
  bool inputs = false;        // also records the batches' inputs and targets
};

// A run whose traffic is recorded.
struct RecordedRun {
  std::string id;
  std::string folder;
  std::vector<std::string> arrays;  // names of the arrays of a sample; the last one is the target
};

struct TrafficTensor {
  std::string name;  // "activation/0:2", with the micro-batch
  TensorSpec spec;
  std::vector<std::byte> bytes;  // in the order of the shape, whatever the memory order
  std::vector<Cell> cells;       // of the index, after the file; empty: not in the index
};

class TrafficRecording : public TrafficObserver {
 public:
  // Creates the folder, or continues the recording of the same run in it. Throws UsageError
  // "recording-exists" if the folder has other files, and RunError "cannot-write".
  TrafficRecording(TrafficOptions options, const RecordedRun& run);

  // ---- Device thread ----

  // Call before the first tensor of a batch crosses. `own`: the micro-batches whose samples `batch`
  // has; in a cohort, the member's share.
  void begin(const MicroBatch& at, const Share& own, const Batch& batch);
  // Call when all tensors of the oldest batch in progress have crossed. Writes its files. If that
  // fails, the recording ends with a warning; the run continues.
  void finish();
  // Drops the batches in progress: the run continues from a checkpoint.
  void dropOpen();
  // What the run's summary says about the recording.
  nlohmann::json summary() const;

  // ---- Any thread ----

  bool wants(const Key& key) const override;
  void crossed(const Key& key, const std::string& codec, CodecLevel level,
               const TensorView& tensor) override;

 private:
  struct OpenBatch {
    MicroBatch at;
    std::vector<TrafficTensor> traffic;
    std::vector<TrafficTensor> inputs;

    bool has(const Key& key) const { return at.phase == key.phase && at.step == key.step; }
  };

  std::string indexPath() const { return options_.folder + "/index.csv"; }
  void checkSameRun(const std::string& run) const;
  void removeTemporaries() const;
  void continueIndex();
  void addFile(const std::string& file);
  bool reserve(std::size_t bytes);
  void write(const OpenBatch& batch);
  void end(const char* reason);
  void writeRecord() const;

  const TrafficOptions options_;
  const std::vector<std::string> arrays_;
  nlohmann::ordered_json about_;  // recording.json, without `ended`
  std::set<std::string> files_;   // of the index
  std::uint64_t steps_ = 0;       // training steps among them

  mutable std::mutex mutex_;    // guards what follows
  std::deque<OpenBatch> open_;  // in the order in which they begin
  std::uint64_t bytes_ = 0;     // recorded, including the open batches
  std::string ended_;           // why nothing more is recorded; empty: more is
};

}  // namespace cleave
