// Decides whether a run may start: the server's policy applied to a run spec. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/core/clock.h"
#include "common/run/plan.h"
#include "server/access.h"
#include "server/settings.h"

namespace cleave {

class Admission {
 public:
  // Both are borrowed.
  Admission(const ServerSettings& settings, const Access& access)
      : settings_(settings), access_(access) {}

  // Reserved for an admitted run until this is destroyed: its run id, and a session and memory,
  // both of the server and of its identity. Must not outlive the Admission.
  class Ticket {
   public:
    Ticket(Admission& admission, std::string identity, std::string runId, std::size_t bytes);
    ~Ticket();
    std::size_t bytes() const { return bytes_; }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    Admission& admission_;
    const std::string identity_;
    const std::string runId_;
    const std::size_t bytes_;
  };

  // Throws UsageError or RunError with the code and sentence of the refusal: "unknown-identity",
  // "model-not-allowed", "others-run", "too-many-sessions", "too-many-runs", "not-enough-memory",
  // "run-in-use", "stale-generation". If the run is connected with a lower generation, calls that
  // connection's `fence`, which must end it; until it has ended, the new one is refused as
  // "run-in-use". A run belongs to the identity whose folder in the store contains it.
  std::unique_ptr<Ticket> admit(const std::string& identity, const std::string& runId,
                                std::uint64_t generation, const RunPlan& plan,
                                std::function<void()> fence, SteadyTime time = now());
  // Admits a run that leaves no records: as admit(), but it has no run id and does not count
  // towards the runs per hour.
  std::unique_ptr<Ticket> admitTrial(const std::string& identity, std::uint64_t session,
                                     const RunPlan& plan);
  // Admits a session that measures the link: it uses no memory and no run id. Throws UsageError
  // "unknown-identity", RunError "too-many-sessions".
  std::unique_ptr<Ticket> admitProbe(const std::string& identity, std::uint64_t session);

  // For all open sessions together.
  std::size_t admittedBytes() const { return bytes_; }

 private:
  struct Connected {
    std::string identity;
    std::uint64_t generation = 0;
    std::function<void()> fence;
  };
  struct Used {
    std::uint32_t sessions = 0;
    std::size_t bytes = 0;
  };
  void checkModel(const std::string& identity, const std::string& model) const;
  void refuseOthersRun(const std::string& identity, const std::string& runId) const;
  void refuseConnected(const std::string& runId, std::uint64_t generation);
  void checkSessions(const std::string& identity) const;
  void checkMemory(const std::string& identity, std::size_t needed) const;
  void checkRuns(const std::string& identity, SteadyTime time);
  Used usedBy(const std::string& identity) const;

  const ServerSettings& settings_;
  const Access& access_;
  std::map<std::string, Connected> runs_;
  std::map<std::string, Used> used_;  // by identity
  // By identity: start times of the runs of the last hour, oldest first.
  std::map<std::string, std::deque<SteadyTime>> begun_;
  std::size_t bytes_ = 0;
};

}  // namespace cleave
