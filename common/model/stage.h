// What the engine's actions compute. A stage owns its part of the model, the optimizer, and what
// autograd saved for the micro-batches in flight. Device thread only.
//
// Boundaries are detached leaves: a stage's input is a leaf that requires a gradient, its output
// leaves autograd before it becomes a payload. The network never hides inside autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/codec/tensor.h"
#include "common/core/step.h"
#include "common/model/compute_device.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

namespace cleave {

struct StageOptions {
  ModelSpec model;
  Cuts cuts;
  OptimizerSpec optimizer;
  std::uint64_t seed = 0;
  // The flows whose tensors leave a stage in its device's memory, by Flow: their codecs work there.
  std::array<bool, kTensorFlows> staysOnDevice{};
};

// Milliseconds that replace an action's computation in benchmarks; its output has the right shape
// and meaningless values. A forward that waits needs a backward that waits.
struct StageWait {
  std::optional<double> f1, t3, b1, f2, b2;

  bool any() const { return f1 || t3 || b1 || f2 || b2; }
};

// Throws UsageError "bad-wait" if the body's forward waits and its backward does not.
void checkBodyWait(const StageWait& wait);

// What a batch was worth: sums over its samples, so that batches add up.
struct BatchMetrics {
  std::uint64_t samples = 0;
  std::map<std::string, double> sums;  // "loss", "top1", "top5"; divide by samples

  void add(const BatchMetrics& other);
};
// The names in BatchMetrics::sums, in the order of columns.
std::vector<std::string> metricNames();

// The body: cut0 to cut1, at the server.
class BodyStage {
 public:
  // The device is borrowed.
  BodyStage(const StageOptions& options, const StageWait& wait,
            ComputeDevice& device = cpuDevice());
  ~BodyStage();

  Payload forward(const MicroBatch& at,
                  Payload activation0);  // activation/1; in eval nothing is kept
  Payload backward(const MicroBatch& at, Payload gradient1);  // gradient/0
  GradientReport report() const;                              // after the last backward
  void update(const StepDecision& decision);                  // clears the gradients

  // The body's parameters and buffers, or the gradients of its parameters that have one, as
  // safetensors.
  std::vector<std::byte> exportWeights() const;
  std::vector<std::byte> exportGradients() const;
  // Puts weights in place, as loadWeights() does.
  void importWeights(std::span<const std::byte> file);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Head and tail with the loss, at the client: cross entropy, loss_i = sum over the micro-batch's
// samples / samples of the batch.
class ClientStage {
 public:
  // The device is borrowed.
  ClientStage(const StageOptions& options, const StageWait& wait,
              ComputeDevice& device = cpuDevice());
  ~ClientStage();

  // Sets the batch that the actions work on; `inputs` is contiguous f32 [samples, sample shape…].
  // Both are borrowed until the next call. Starts metrics anew. Throws UsageError: a label that is
  // no class of the model.
  void beginBatch(TensorView inputs, std::span<const std::int64_t> labels);
  Payload headForward(const MicroBatch& at);                    // activation/0
  Payload tailStep(const MicroBatch& at, Payload activation1);  // gradient/1; empty in eval
  void headBackward(const MicroBatch& at, Payload gradient0);
  GradientReport headReport() const;
  GradientReport tailReport() const;
  void update(const StepDecision& decision);
  // Of the micro-batches whose tailStep has run.
  const BatchMetrics& metrics() const;
  // loss_i of each micro-batch of this batch, by i: the bits that verify compares.
  const std::vector<float>& losses() const;

  const ModelPart& head() const;
  const ModelPart& tail() const;
  // Takes those of head and tail, and leaves out the others.
  void importWeights(const std::vector<NamedTensor>& model);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same model in one piece in one process, on the CPU: what the split must equal to the bit.
class WholeStage {
 public:
  explicit WholeStage(const StageOptions& options);
  ~WholeStage();

  // Forward and backward (in train) of all micro-batches in order. Gradients add up until update().
  void runBatch(Phase phase, std::uint64_t step, std::uint32_t microBatches, TensorView inputs,
                std::span<const std::int64_t> labels);
  void update(const StepDecision& decision);
  const BatchMetrics& metrics() const;
  const std::vector<float>& losses() const;
  const ModelPart& part() const;
  void importWeights(const std::vector<NamedTensor>& model);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A part's parameters, then its buffers, each in model order. Shares their memory.
std::vector<NamedTensor> weightsOf(const ModelPart& part);
// The gradients of its parameters that have one, under the parameters' names.
std::vector<NamedTensor> gradientsOf(const ModelPart& part);
// Tensors as a safetensors file and back. What lies in the file is contiguous (weights of
// convolutions as [out, in, height, width]), whatever the memory order here. Reading throws
// UsageError; `name` stands for the file in errors.
std::vector<std::byte> toSafetensors(const std::vector<NamedTensor>& tensors);
std::vector<NamedTensor> fromSafetensors(std::span<const std::byte> file, const std::string& name);

// Copies each tensor into the part's parameter or buffer of its name; those not given keep their
// values. Throws UsageError "bad-weights": a name that the part has not, or another shape.
void loadWeights(const ModelPart& part, const std::vector<NamedTensor>& tensors);
// Those of `tensors` that belong to blocks [first, last).
std::vector<NamedTensor> selectWeights(const std::vector<NamedTensor>& tensors,
                                       const std::vector<BlockRow>& blocks, int first, int last);
// Checks a file's tensors against a model, of which the blocks named in `except` are left out.
// Throws UsageError "bad-weights" unless the file has every other parameter and buffer of the model
// in its shape, and nothing else; the sentence begins with `source` and names what does not fit.
// The same where `except` names no block.
void checkWeights(const std::vector<NamedTensor>& tensors, const std::vector<BlockRow>& blocks,
                  const std::vector<std::string>& except, const std::string& source);

// Bytes that blocks [first, last) need for `inFlight` micro-batches of at most `maxSamples`:
// parameters x (1 + gradient + optimizer state) + buffers + in flight x outputs of all layers,
// which autograd saves + 2 x outputs of the largest block, whose gradients come and go as one
// micro-batch goes backward. An estimate from shapes; nothing is allocated.
std::size_t partBytes(const StageOptions& options, int first, int last, std::uint32_t inFlight,
                      std::uint32_t maxSamples);

// Spec of a flow's tensor for a micro-batch of `samples`. Tensor flows only.
TensorSpec flowSpec(const std::vector<BlockRow>& blocks, const Cuts& cuts, Flow flow,
                    std::uint32_t samples);

// Sets the threads LibTorch computes with on this thread. 1 and 2 threads give different bits, so
// that a run keeps its count.
void setComputeThreads(int threads);

}  // namespace cleave
