// The runs and trials that the server serves, from their admission until they are closed. io thread
// only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <map>
#include <memory>
#include <string>

#include "common/net/connection.h"
#include "server/admission.h"
#include "server/served_run.h"

namespace cleave {

class RunTable {
 public:
  // Both are borrowed.
  RunTable(const RunResources& resources, Admission& admission)
      : resources_(resources), admission_(admission) {}

  // Decides whether the run may start, and adds it. Whoever gets it must close() it. Throws
  // UsageError or RunError with the code and sentence of the refusal: those of planRun() and of
  // Admission, "bad-run-id", "wait-not-allowed", "run-in-use", "stale-generation". If the run is
  // served with a lower generation, that connection ends; until it has ended, the new one is
  // refused as "run-in-use".
  std::shared_ptr<ServedRun> admit(RunRequest request, std::shared_ptr<Connection> connection);
  // Closes the run, and removes it. Its share of the server's limits is free once the caller has
  // released it too.
  boost::asio::awaitable<void> close(std::shared_ptr<ServedRun> run);
  // For a process that exits without closing the runs: completes their records with the current
  // state.
  void completeRecords();

 private:
  void refuseServed(const RunRequest& request) const;

  const RunResources& resources_;
  Admission& admission_;
  std::map<std::string, std::shared_ptr<ServedRun>> runs_;  // by keyOf()
};

}  // namespace cleave
