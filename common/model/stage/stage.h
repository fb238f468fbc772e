// The computations of the engine's actions. A stage owns its part of the model, the optimizer, and
// the data that autograd saved for the micro-batches in flight. Device thread only.
//
// Batch norms' running statistics change in update() only, like the parameters, so that parameters
// and statistics always belong to the same step. A skipped step changes neither.
//
// Boundaries are detached leaves: a stage's input is a leaf that requires a gradient, and its
// output is detached from autograd before it becomes a payload. Network transfers are never part of
// autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/codec/safetensors.h"
#include "common/codec/tensor.h"
#include "common/device/compute_device.h"
#include "common/model/body.h"
#include "common/model/defences.h"
#include "common/model/experiment.h"
#include "common/model/scores.h"
#include "common/topology/step.h"

namespace cleave {

struct StageOptions : Experiment {
  Cuts cuts = {};
  // Positions of the cuts between several bodies, if several servers compute the model. Used only
  // by the client.
  std::vector<int> innerCuts = {};
  // The positions of all cuts: cuts.cut0, innerCuts, cuts.cut1.
  std::vector<int> allCuts() const;
  ScoreSpec scores = {};  // the client's loss and metrics
  // No parameter before the first cut is trained, so no gradients cross it.
  bool headIsFrozen = false;
  Precision clientPrecision = Precision::fp32;  // precision of head and tail
  // If the body sends gradients, it computes those of its weights separately, in
  // BodyStage::backwardWeights() (Schedule::splitsBackward).
  bool splitsBackward = false;
  // Whether a flow's tensors leave the stage in the device's memory, because their codec runs
  // there.
  FlowMap<bool> staysOnDevice = {};
  Replica replica = {};    // the body computes as this one
  Defences defences = {};  // only the client knows of them
  // The number of replicas of each body, from which the whole model knows how gradients are added:
  // those of each replica's micro-batches on their own, then the sums in rank order. Empty: one
  // each.
  std::vector<std::uint32_t> bodyReplicas = {};
  // Called between the operators of a graph; may throw to end the action. Empty: none.
  std::function<void()> checkpoint = {};
};

// A batch in host memory, contiguous.
struct BatchView {
  std::vector<TensorView> arrays;  // the model's inputs, then the target, each [samples, …]
  // In a cohort: the position of its first sample in the batch of all members, and the number of
  // samples of that batch; 0: it is the whole batch.
  std::uint32_t first = 0;
  std::uint32_t whole = 0;

  const TensorView& target() const { return arrays.back(); }
  std::uint32_t samples() const { return static_cast<std::uint32_t>(target().spec.shape.front()); }
};

// Loss and metrics of a batch, as sums over its samples, so that batches can be added.
struct BatchMetrics {
  std::uint64_t samples = 0;
  MetricSums sums;

  void add(const BatchMetrics& other);
};
// The values of ScoreSpec::names(); nullopt for a metric without counted samples.
std::vector<std::optional<double>> metricValues(const ScoreSpec& spec, const BatchMetrics& metrics);

// A safetensors file of tensors, of which only a part exists at a time.
class TensorFile {
 public:
  // The tensors must not change while this exists.
  explicit TensorFile(std::vector<NamedTensor> tensors);
  TensorFile(TensorFile&&) = default;
  TensorFile& operator=(TensorFile&&) = default;
  std::size_t size() const { return size_; }
  // Copies the file's next bytes. Returns how many; 0: none is left.
  std::size_t read(std::span<std::byte> into);
  // The bytes that are left.
  std::vector<std::byte> readAll();

 private:
  std::vector<NamedTensor> tensors_;
  std::vector<std::byte> header_;
  std::size_t size_ = 0;
  std::size_t next_ = 0;             // of tensors_, after the one that is being read
  at::Tensor current_;               // contiguous, on the CPU
  std::span<const std::byte> rest_;  // of the header or the current tensor
};

// The body: blocks [cut0, cut1), on the server.
class BodyStage : public Body {
 public:
  // The device is borrowed.
  explicit BodyStage(const StageOptions& options, ComputeDevice& device = cpuDevice());
  ~BodyStage() override;

  TensorBundle forward(const MicroBatch& at, TensorBundle activations0) override;
  TensorBundle backward(const MicroBatch& at, TensorBundle gradients1) override;
  void backwardWeights(const MicroBatch& at) override;
  GradientReport report(std::uint64_t step = 0) override;
  std::size_t shareSize() override;
  void writeShare(std::uint64_t step, std::span<float> share) override;
  void readSum(std::uint64_t step, std::span<const float> sum) override;
  void update(const StepDecision& decision) override;
  std::uint64_t weightsDigest() override;
  std::vector<std::byte> exportWeights() override;
  std::vector<std::byte> exportGradients() override;
  void importWeights(std::span<const std::byte> file) override;
  std::vector<std::byte> saveFile() override;
  void restoreFile(std::span<const std::byte> file) override;

  // The files that exportWeights(), exportGradients() and saveFile() return.
  TensorFile weightsFile() const;
  TensorFile gradientsFile();
  TensorFile stateFile() const { return TensorFile(save()); }

  // All state that the stage keeps between steps: parameters and buffers under their names, the
  // optimizer's state (Optimizer::state()) and, with staleness, the older versions of the trained
  // parameters that later steps need, as "PARAMETER:versionN" after N updates. Shares their memory.
  // Call after an update. Steps in progress are not part of the state.
  std::vector<NamedTensor> save() const;
  // Restores a state that save() returned: the next steps are bit-identical to those that followed
  // save(). Throws RunError "bad-checkpoint" if a tensor is missing, unknown, or has another shape
  // or type.
  void restore(const std::vector<NamedTensor>& saved);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Head, tail and loss, on the client: loss_i = (sum of the losses of the micro-batch's samples) /
// (the batch's LossRow::weight(), which is usually its number of samples).
class ClientStage {
 public:
  // The device is borrowed.
  explicit ClientStage(const StageOptions& options, ComputeDevice& device = cpuDevice());
  ~ClientStage();

  // Sets the batch that the actions of `step` work on and resets the metrics. With staleness D, the
  // D + 1 latest steps have a batch each; without, `step` has no effect. The batch is borrowed
  // until another one replaces it. Throws UsageError if a target is not a class of the model.
  void beginBatch(const BatchView& batch, std::uint64_t step = 0);
  // Sets the factor by which the loss, and therefore all gradients, are scaled; initially 1. Call
  // between batches. With staleness, must be 1.
  void setLossScale(double scale);
  TensorBundle headForward(const MicroBatch& at);  // the tensors of the first cut
  // Computes the gradients at the last cut from its tensors; returns none in evaluation.
  TensorBundle tailStep(const MicroBatch& at, TensorBundle activations1);
  void headBackward(const MicroBatch& at, TensorBundle gradients0);
  // About the oldest step in progress, after its last backward. headReport() also puts the step's
  // gradients into head() and tail().
  GradientReport headReport();
  GradientReport tailReport();
  void update(const StepDecision& decision);
  // `step` below: as for beginBatch().
  // Metrics of the micro-batches whose tailStep has run.
  const BatchMetrics& metrics(std::uint64_t step = 0) const;
  // In a cohort, those of this member's samples.
  const BatchMetrics& ownMetrics(std::uint64_t step = 0) const;
  // loss_i of each micro-batch of the batch, by i. `verify` compares these bit for bit.
  const std::vector<float>& losses(std::uint64_t step = 0) const;
  // From now on, the model's outputs of each batch are kept until the next batch.
  void keepOutputs();
  // The outputs of the batch, [samples, …], fp32, on the CPU. Call after its last tailStep.
  at::Tensor outputs(std::uint64_t step = 0) const;
  // From now on, `function` gets the tensors that cross the first and the last cut (their numbers)
  // in training, on the device: those of the first one from headForward(), and those of the last
  // one from tailStep().
  void observeCuts(
      std::function<void(int cut, const MicroBatch& at, const TensorList& tensors)> function);

  // ---- For a member of a cohort, about the oldest step in progress ----
  // Number of floats of its part of a sum over members: gradients and batch-norm statistics.
  std::size_t shareSize() const;
  // Call after the last backward. `share`: of that size.
  void writeShare(std::uint64_t step, std::span<float> share);
  // Replaces gradients, statistics and metrics by those of all members.
  void readSum(std::uint64_t step, std::span<const float> sum);
  void setMetrics(std::uint64_t step, BatchMetrics metrics);

  const ParameterSet& head() const;
  const ParameterSet& tail() const;
  // The parameters for evaluations and for saving: the averages, if there are any.
  const ParameterSet& evaluatedHead() const;
  const ParameterSet& evaluatedTail() const;
  // Loads the tensors that belong to head or tail and ignores the rest.
  void importWeights(const std::vector<NamedTensor>& model);

  // Like BodyStage::save() and restore(), for head and tail together.
  std::vector<NamedTensor> save() const;
  void restore(const std::vector<NamedTensor>& saved);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The unsplit model in one process. The split model's results must be bit-identical to its results
// if all parts compute on devices of the same kind.
class WholeStage {
 public:
  // The device is borrowed.
  explicit WholeStage(const StageOptions& options, ComputeDevice& device = cpuDevice());
  ~WholeStage();

  // Runs forward and, in training, backward of all micro-batches in order, and returns when the
  // device is done. Gradients accumulate until update(). With staleness, call update() after each
  // training batch. With a cohort's division, gradients of head and tail are accumulated member by
  // member, then added. If several batches with the same number of micro-batches ran before
  // update(), the running batch-norm statistics are updated from the last one only.
  void runBatch(Phase phase, std::uint64_t step, const Division& division, const BatchView& batch);
  void runBatch(Phase phase, std::uint64_t step, std::uint32_t microBatches,
                const BatchView& batch) {
    runBatch(phase, step, Division::of(batch.samples(), microBatches), batch);
  }
  void setLossScale(double scale);  // as ClientStage::setLossScale()
  GradientReport report();
  void update(const StepDecision& decision);
  const BatchMetrics& metrics() const;
  const std::vector<float>& losses() const;
  void keepOutputs();  // as ClientStage::keepOutputs()
  at::Tensor outputs() const;
  const ParameterSet& set() const;
  const ParameterSet& evaluatedSet() const;  // the averages, if there are any
  void importWeights(const std::vector<NamedTensor>& model);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns a set's parameters, then its buffers, each in model order. The result shares their
// memory.
std::vector<NamedTensor> weightsOf(const ParameterSet& set);
// Like weightsOf(), followed by the constants.
std::vector<NamedTensor> stateOf(const ParameterSet& set);
// The gradients of those parameters that have one, under the parameters' names.
std::vector<NamedTensor> gradientsOf(const ParameterSet& set);
// Converts tensors to a safetensors file and back. The file's tensors are contiguous (convolution
// weights as [out, in, height, width]), regardless of their memory order in the stage. Reading
// throws UsageError; `name` identifies the file in errors.
std::vector<std::byte> toSafetensors(const std::vector<NamedTensor>& tensors);
std::vector<NamedTensor> fromSafetensors(std::span<const std::byte> file, const std::string& name);
std::vector<NamedTensor> tensorsOf(const std::vector<SafetensorsEntry>& entries,
                                   const std::string& name);

// Copies each tensor into the set's parameter or buffer of that name; the others keep their values.
// Throws UsageError "bad-weights" if the set has no such name or the shapes differ.
void loadWeights(const ParameterSet& set, const std::vector<NamedTensor>& tensors);
// Returns the elements of `tensors` that belong to blocks [first, last).
std::vector<NamedTensor> selectWeights(const std::vector<NamedTensor>& tensors,
                                       const std::vector<BlockSpec>& blocks, int first, int last);
// Throws UsageError "bad-weights" if the model has no block with one of the names.
void checkBlockNames(const std::vector<std::string>& names, const std::vector<BlockSpec>& blocks);
// Checks a file's tensors against a model, ignoring the blocks named in `except`. Throws UsageError
// "bad-weights" unless the file has every other parameter and buffer of the model with the right
// shape, and no other tensors; adapters and inserts may be missing. The message begins with
// `source` and names a tensor that does not fit. Also throws it if `except` names a block that the
// model does not have.
void checkWeights(const std::vector<NamedTensor>& tensors, const std::vector<BlockSpec>& blocks,
                  const std::vector<std::string>& except, const std::string& source);

// What a part computes at a time: samples of the largest micro-batches, and threads.
struct PartLoad {
  std::uint32_t training = 1;
  std::uint32_t evaluation = 1;
  int threads = 1;
  // Micro-batches in flight besides those of the largest size, whose number counts their samples.
  std::uint32_t smaller = 0;
};

// Estimates, from shapes alone, the memory in bytes that blocks [first, last) need for steps of
// `microBatches`, of which `inFlight` are in flight: parameters x (1 + gradient + optimizer state)
// + buffers + scratch memory for the largest weight, of convolutions per thread + micro-batches x
// statistics of all batch norms + the larger one of two sums. In training: in flight x what
// autograd saves + what the largest block needs besides (BlockSpec::passes). In evaluations: what
// the largest block needs. A body that splits its backward also keeps gradients, of at most the
// size of what it saves. `blocks`: the result of blocksFor(options).
std::size_t partBytes(const StageOptions& options, const std::vector<BlockSpec>& blocks, int first,
                      int last, std::uint32_t microBatches, std::uint32_t inFlight,
                      const PartLoad& load);

// Maximum number of floats in a share of the body (BodyStage::shareSize()).
std::size_t maxShareSize(const StageOptions& options, const std::vector<BlockSpec>& blocks);

// Whether the body computes the gradients of its weights separately: if the schedule splits the
// backward, and the body sends gradients.
bool bodySplits(const StageOptions& options, const std::vector<BlockSpec>& blocks);

// The tensors that cross `cut`, which is cuts.number0 or cuts.number1.
const std::vector<BlockOutput>& outputsAt(const std::vector<BlockSpec>& blocks, const Cuts& cuts,
                                          int cut);
CutTensors cutTensorsAt(const std::vector<BlockSpec>& blocks, const Cuts& cuts, int cut);
// Returns the Place of the body.
Place placeOfBody(const std::vector<BlockSpec>& blocks, const Cuts& cuts);

// The spec of a flow's tensor for a micro-batch of `samples`. Tensor flows only.
TensorSpec flowSpec(const std::vector<BlockSpec>& blocks, const Cuts& cuts, Flow flow,
                    std::uint32_t samples);
TensorSpec specOfOutput(const BlockOutput& output, std::uint32_t samples);

// Returns the model's blocks for these options, which determine the inserts, the trained
// parameters, the tensors at the cuts that have gradients, and the precision. Throws UsageError if
// the cuts or the inserts do not fit the model.
std::vector<BlockSpec> blocksFor(const StageOptions& options);

// Sets how many threads LibTorch uses for computations started on this thread. Results with 1 and 2
// threads are not bit-identical, so a run must not change the number.
void setComputeThreads(int threads);

}  // namespace cleave
