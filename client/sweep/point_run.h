// Runs one point of a sweep in separate processes: the training run, and, if the point has a link,
// cleave-link and (unless --server is given) a server.
#pragma once

#include <string>

#include "client/sweep/point_store.h"
#include "client/train/run_options.h"

namespace cleave {

// While it exists, counts SIGINT and SIGTERM instead of letting them end the process. Only one
// instance at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  int count() const;
};

struct PointEnd {
  bool interrupted = false;
  StoredPoint stored;  // done, or failed with an error sentence
};

// Continues the point from its newest checkpoint, if it was begun with the same plan and has one;
// otherwise runs it from the start and replaces the content of FOLDER/POINT. On success the result
// is stored there; on failure FOLDER/POINT.log has the stderr of its processes. The first interrupt
// sends SIGINT to the training run, the second kills it; the other processes then end too. Throws
// RunError only if the folder is not writable.
PointEnd runPoint(const RunOptions& options, const PlannedPoint& planned, const std::string& folder,
                  const Interrupts& interrupts);

}  // namespace cleave
