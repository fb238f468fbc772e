// Ownership of a store: each store has one server. A second one would write the same files of
// weights, usage and disk shares, and its clients would find runs that the first one serves.
// Commands that only read, or that lock the folder of a run, do not need it.
#pragma once

#include <string>

#include "common/core/open_file.h"

namespace cleave {

class StoreLock {
 public:
  // Locks the folder, which must exist, until this object is destroyed or the process ends. Throws
  // UsageError "store-in-use" if another server has it. If the file system does not support locks,
  // logs a warning.
  explicit StoreLock(const std::string& store);

 private:
  OpenFile file_;
};

}  // namespace cleave
