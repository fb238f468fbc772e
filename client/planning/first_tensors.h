// The tensors of a run's first micro-batch, computed by the client alone.
#pragma once

#include <vector>

#include "client/codecs/codec_comparison.h"
#include "client/run/prepare.h"

namespace cleave {

// Computes the first micro-batch of the batch on the CPU, with head, body and tail in this process,
// and returns the fp32 tensors that would cross the cuts: at most 2^20 values of each, or one
// sample. `plan`: without staleness, such as that of a trial. `weights`: initialWeights(). Empty if
// the body has more than 2^27 parameters, for which the client may lack the memory. Throws the
// errors of the stages.
SampleTensors firstTensors(const PreparedRun& run, const RunPlan& plan,
                           const std::vector<NamedTensor>& weights, const Batch& batch);

}  // namespace cleave
