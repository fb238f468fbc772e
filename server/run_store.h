// The folder with the records of all runs: STORE/IDENTITY/RUN. Each identity has its share of the
// disk.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/core/clock.h"
#include "common/core/record.h"
#include "common/device/compute_device.h"
#include "common/record/run_files.h"
#include "common/run/metrics.h"
#include "proto/wire.pb.h"
#include "server/access.h"
#include "server/disk_share.h"
#include "server/settings.h"

namespace cleave {

// The records of one run. Those of a trial write nothing, and have no log and no share.
struct StoredRun {
  std::shared_ptr<RunFiles> files = std::make_shared<RunFiles>();
  std::shared_ptr<spdlog::logger> log;
  std::shared_ptr<DiskShare> disk;
};

// io thread, except the constructor.
class RunStore {
 public:
  // The references are borrowed. `metrics`, which may be null, observes the rows of all runs.
  // Throws UsageError "not-writable".
  RunStore(const ServerSettings& settings, const Access& access, const ComputeDevice& compute,
           std::shared_ptr<Metrics> metrics);

  // Makes the folder of the run that `hello` asks for, with its description, its log and its CSV
  // files. Throws UsageError "run-exists", and RunError if there is no room or nothing can be
  // written.
  StoredRun open(const std::string& identity, const wire::Hello& hello, std::uint64_t session,
                 int threads);

  // Call it about once per second; does not wait for the disk.
  void look(SteadyTime time) { disk_.look(time); }
  // Free bytes beyond the server's reserve; negative if less than the reserve is free.
  std::int64_t roomBytes() const { return disk_.roomBytes(); }
  // Any thread.
  Recorder& recorder() { return recorder_; }

 private:
  const ServerSettings& settings_;
  const Access& access_;
  const ComputeDevice& compute_;
  const std::shared_ptr<Metrics> metrics_;
  Recorder recorder_;
  DiskShares disk_;
};

}  // namespace cleave
