// Which faults have been reported, so that a fault that repeats is reported once. Not thread-safe.
#pragma once

#include <set>
#include <string>

namespace cleave {

class FaultNotes {
 public:
  // Returns whether a fault of this cause is to be reported: it has not occurred since the last
  // recovery. `cause`: an error code, and what distinguishes faults with the same code.
  bool isNew(const std::string& cause) { return causes_.insert(cause).second; }
  // Call when it works. Returns whether this is a recovery, which is to be reported too.
  bool recovered() {
    const bool hadFaults = !causes_.empty();
    causes_.clear();
    return hadFaults;
  }

 private:
  std::set<std::string> causes_;
};

}  // namespace cleave
