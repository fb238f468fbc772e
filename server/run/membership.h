// Which clients may sit at a run of a cohort.
#pragma once

#include <cstdint>

#include "server/run/seat.h"

namespace cleave {

// The client's number in its cohort; 0 without a cohort. Throws UsageError "not-a-member" unless
// its certificate has the name of that member.
std::uint32_t memberNumber(const RunRequest& request);

// Throws UsageError "other-member", which names what differs, unless both clients want the same
// run.
void checkSameRun(const RunRequest& first, const RunRequest& other);

}  // namespace cleave
