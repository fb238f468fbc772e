#include "common/topology/cohort.h"

#include <algorithm>
#include <functional>

namespace cleave {

bool Attendance::follows(const Attendance* before, std::size_t members) const {
  constexpr std::uint64_t kMaxStep = std::uint64_t{1} << 48;  // so that sums do not overflow
  const bool isInOrder = before == nullptr
                             ? firstStep == 1 && evaluated == 0
                             : firstStep > before->firstStep && firstStep <= kMaxStep &&
                                   evaluated >= before->evaluated && evaluated <= kMaxStep;
  return isInOrder && !present.empty() && present.back() < members &&
         std::ranges::adjacent_find(present, std::ranges::greater_equal()) == present.end();
}

}  // namespace cleave
