// Decides whether a run may start: the server's policy applied to a run spec. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/run/plan.h"
#include "server/access/access.h"
#include "server/config/settings.h"

namespace cleave {

// The refusal of a run that belongs to another identity.
UsageError othersRun(const std::string& runId);

class Admission {
 public:
  // Both are borrowed.
  Admission(const ServerSettings& settings, const Access& access)
      : settings_(settings), access_(access) {}

  // Reserves a session and memory, on the server and for an identity, until it is destroyed. Must
  // not outlive the Admission.
  class Ticket {
   public:
    Ticket(Admission& admission, std::string identity, std::size_t bytes);
    ~Ticket();
    std::size_t bytes() const { return bytes_; }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    Admission& admission_;
    const std::string identity_;
    const std::size_t bytes_;
  };

  // The functions below throw UsageError or RunError with the code and sentence of the refusal, or
  // "unknown-identity".

  // Checks whether the identity may use this run, regardless of current usage: "model-not-allowed",
  // "others-run". A run belongs to the identity whose folder in the store contains it.
  void checkRun(const std::string& identity, const std::string& runId, const RunPlan& plan) const;
  // Admits one more run if the limits allow it: "too-many-sessions", "not-enough-memory",
  // "too-many-runs". Call checkRun() first. `forMember`: in a cohort, the memberBytes() of the
  // first member, and cohortBytes().
  std::unique_ptr<Ticket> admit(const std::string& identity, const RunPlan& plan,
                                std::size_t forMember = 0, SteadyTime time = now());
  // Admits another member of an admitted run: "too-many-sessions", "not-enough-memory".
  std::unique_ptr<Ticket> admitMember(const std::string& identity, const RunPlan& plan,
                                      std::size_t forMember);
  // Admits a trial, which leaves no records, belongs to no identity and does not count towards the
  // runs per hour: "model-not-allowed", "too-many-sessions", "not-enough-memory".
  std::unique_ptr<Ticket> admitTrial(const std::string& identity, const RunPlan& plan);
  // Admits a probe session, which uses no run memory: "too-many-sessions".
  std::unique_ptr<Ticket> admitProbe(const std::string& identity);

  // Throws "model-not-allowed" if the server, or the identity's entry, does not allow the model.
  void checkModel(const std::string& identity, const std::string& model) const;

  // The memory admitted for all open sessions together.
  std::size_t admittedBytes() const { return bytes_; }

 private:
  struct Used {
    std::uint32_t sessions = 0;
    std::size_t bytes = 0;
  };
  void refuseOthersRun(const std::string& identity, const std::string& runId) const;
  void checkSessions(const std::string& identity) const;
  void checkMemory(const std::string& identity, const RunPlan& plan, std::size_t needed) const;
  void checkRuns(const std::string& identity, SteadyTime time);
  Used usedBy(const std::string& identity) const;

  const ServerSettings& settings_;
  const Access& access_;
  std::map<std::string, Used> used_;  // by identity
  // By identity: start times of the runs of the last hour, oldest first.
  std::map<std::string, std::deque<SteadyTime>> begun_;
  std::size_t sessions_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace cleave
