// Runs one point of a sweep in separate processes. The training run is one process. If the point
// has an emulated link, cleave-link is another one and, unless --server is given, a server is the
// third.
#pragma once

#include <string>

#include "client/config/run_options.h"
#include "client/sweep/point_store.h"

namespace cleave {

// While an object of this class exists, SIGINT and SIGTERM are counted instead of ending the
// process. Only one object may exist at a time.
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
  StoredPoint stored;  // the point is done, or it failed with an error sentence
};

// If the point was started with the same plan and has checkpoints, continues from the newest one.
// Otherwise runs the point from the start and replaces the content of FOLDER/POINT. On success, the
// result is stored in that folder. On failure, FOLDER/POINT.log has the stderr of the point's
// processes. The first interrupt sends SIGINT to the training run, and the second kills it; the
// other processes then end too. Throws RunError only if the folder is not writable.
PointEnd runPoint(const RunOptions& options, const PlannedPoint& planned, const std::string& folder,
                  const Interrupts& interrupts);

}  // namespace cleave
