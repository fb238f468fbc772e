// Who may run what: the server's policy applied to a run spec. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "daemon/plan.h"
#include "server/settings.h"

namespace cleave {

class Admission {
 public:
  explicit Admission(const ServerSettings& settings) : settings_(settings) {}

  // What an admitted run holds until this is destroyed: a session, memory, its run id. Must not outlive the Admission.
  class Ticket {
   public:
    Ticket(Admission& admission, std::string runId, std::size_t bytes);
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    Admission& admission_;
    const std::string runId_;
    const std::size_t bytes_;
  };

  // Throws UsageError or RunError with the code and sentence of the refusal: "model-not-allowed", "too-many-sessions",
  // "not-enough-memory", "run-in-use".
  std::unique_ptr<Ticket> admit(const std::string& runId, const RunPlan& plan);

 private:
  const ServerSettings& settings_;
  std::set<std::string> runs_;
  std::size_t bytes_ = 0;
};

}  // namespace cleave
