// What would shorten a run's steps most, by simulating them.
#pragma once

#include <string>

#include "common/pipeline/bound.h"
#include "daemon/plan.h"

namespace cleave {

// One sentence: `bottleneck`, which holds the run back, and the change that would save most, such
// as "uplink: block:bits=4 on all flows would save 41 % of a step". Codecs that the run does not
// use are timed here, on tensors of its shapes: some 10 ms. `costs` are those of the run's steps,
// which have `batch` samples.
std::string whatWouldHelp(const StepCosts& costs, Bottleneck bottleneck, const RunPlan& plan,
                          std::uint32_t batch);

}  // namespace cleave
