// A run, resolved: what both daemons derive from the run spec that the client sends, by the same
// code, so that they cannot disagree.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/codec/codec.h"
#include "common/model/stage.h"
#include "common/pipeline/schedule.h"
#include "common/pipeline/trace.h"
#include "proto/wire.pb.h"

namespace cleave {

class DeviceCodec;
struct TensorLinkOptions;

// The flows of a training step, in the order in which a micro-batch crosses.
inline constexpr Flow kStepFlows[] = {Flow::activation0, Flow::activation1, Flow::gradient1,
                                      Flow::gradient0};
// Milliseconds that an action may wait at most instead of computing.
inline constexpr double kMostWait = 60000;

struct RunPlan {
  StageOptions stage;
  StageWait wait;  // f2 and b2 only; the client adds its own
  std::vector<BlockRow> blocks;
  const Schedule* schedule = nullptr;
  std::uint32_t microBatches = 1;
  std::uint32_t inFlight = 1;
  std::uint32_t maxBatch = 1;
  std::uint64_t stepsPerEpoch = 0;
  bool initialWeights = false;  // the client sends the body's
  bool rawNonFinite = false;    // as TensorLinkOptions
  TraceWindow trace;            // without steps: none is asked for
  std::array<std::shared_ptr<const Codec>, kTensorFlows> codecs;
  // As TensorLinkOptions; set by useDeviceCodecs().
  std::array<std::shared_ptr<const DeviceCodec>, kTensorFlows> deviceCodecs;

  std::uint32_t maxMicroBatchSamples() const {
    return microBatchSize(maxBatch, microBatchCount(maxBatch, microBatches), 0);
  }
};

// Throws UsageError: what is unknown, out of range, or does not fit. Builds and allocates nothing.
RunPlan planRun(const wire::RunSpec& spec);

// Lets the flows whose codecs have a twin on the device stay there, on this side. Borrows the
// device.
void useDeviceCodecs(RunPlan& plan, ComputeDevice& device);

// What a tensor link needs of a plan; the caller adds what is its own.
TensorLinkOptions linkOptions(const RunPlan& plan, Role role);

// Bytes that the four flows' tensors of the micro-batches in flight take on either side, decoded
// and encoded, as buffers of the pool.
double flowBytes(const RunPlan& plan);

// The host memory that a run's session may hold in transit at the server, from a tensor's arrival,
// or a stage's output, to its release: the limit of its MemoryAccount.
std::size_t transitBytes(const RunPlan& plan);
// All that the server needs for a run: what is in transit, the body with what autograd saves, and
// what codecs carry from step to step or need while they work.
std::size_t serverBytes(const RunPlan& plan);

// The most bytes that the body's weights take as safetensors.
std::uint64_t maxWeightsBytes(const RunPlan& plan);

}  // namespace cleave
