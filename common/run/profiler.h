// Measures a profile: the times of a model's blocks and codecs on this machine.
#pragma once

#include <string>
#include <vector>

#include "common/model/stage/stage.h"
#include "common/predict/profile.h"
#include "common/run/plan.h"

namespace cleave {

struct ProfilerOptions {
  // Blocks [first, last) are measured.
  int first = 0, last = 0;
  std::uint32_t batch = 0;          // samples
  const BatchView* data = nullptr;  // a batch; null on servers, where `first` must be above 0
  std::vector<std::string> codecs;
  int repeats = 3;  // each time is the median of this many repetitions
};

// Returns the numbers of micro-batches into which profiles and plans divide a batch: the powers of
// 2 up to 64 that leave each micro-batch enough samples for the model's batch norms.
std::vector<std::uint32_t> profiledMicroBatches(const std::vector<BlockSpec>& blocks,
                                                std::uint32_t batch);

// Bytes per sample of the tensors that the block passes to the next one.
double outputBytes(const BlockSpec& block);

// Trains each block on its own, with learning rate 0, and measures codecs with measureCodec().
// Leaves Profile::threads, memoryBytes and runSpec to the caller. Device thread only, which must
// not have other work.
Profile measureProfile(const RunPlan& plan, ComputeDevice& device, const ProfilerOptions& options);

// Returns the plan of a server that measures the model of a client's profile: all blocks of an
// exported model except the first and the last one are in its body. Throws UsageError
// "bad-profile".
RunPlan planOfProfile(const Profile& client);

// Seconds to encode and decode a tensor of this spec with random values on the CPU, per byte of the
// tensor: the minimum of a few repetitions. Codecs with states encode as in their first step.
CodecProfile measureCodec(const Codec& codec, const TensorSpec& tensor);

}  // namespace cleave
