// Who may run what: the server's policy applied to a run spec. io thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/plan.h"
#include "server/settings.h"

namespace cleave {

class Admission {
 public:
  explicit Admission(const ServerSettings& settings) : settings_(settings) {}

  // What an admitted run holds until this is destroyed: a session, memory, its run id. Must not
  // outlive the Admission.
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

  // Throws UsageError or RunError with the code and sentence of the refusal: "model-not-allowed",
  // "too-many-sessions", "not-enough-memory", "run-in-use", "stale-generation". A greater
  // generation of a run that is connected calls `fence` of the older connection, which is to end
  // it, and is refused as "run-in-use" until that is gone.
  std::unique_ptr<Ticket> admit(const std::string& runId, std::uint64_t generation,
                                const RunPlan& plan, std::function<void()> fence);
  // A session that measures the link: it holds no memory and no run id. Throws RunError
  // "too-many-sessions".
  std::unique_ptr<Ticket> admitProbe(std::uint64_t session);

 private:
  void checkSessions() const;
  const ServerSettings& settings_;
  struct Connected {
    std::uint64_t generation = 0;
    std::function<void()> fence;
  };
  void refuseConnected(const std::string& runId, std::uint64_t generation);

  std::map<std::string, Connected> runs_;
  std::size_t bytes_ = 0;
};

}  // namespace cleave
