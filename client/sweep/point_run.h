// Runs one point of a sweep in processes of their own: the training, and, where the point asks for
// a link, cleave-link and a server behind it.
#pragma once

#include <string>

#include "client/commands.h"
#include "client/sweep/point_store.h"

namespace cleave {

// Counts SIGINT and SIGTERM while it lives, instead of ending the process. One at a time.
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
  StoredPoint stored;  // done, or failed with a sentence
};

// Begins anew whatever stands in FOLDER/POINT. Where the point is done it is stored; where it
// failed, FOLDER/POINT.log has what its processes wrote on stderr. At an interrupt all of them are
// told to end, at a second one they are killed. Throws RunError only where the folder cannot be
// written to.
PointEnd runPoint(const RunOptions& options, const PlannedPoint& planned, const std::string& folder,
                  const Interrupts& interrupts);

}  // namespace cleave
