// A model is a list of named blocks. A cut is a position in that list. Each side allocates the
// tensors of its own blocks only. To add a model, write one file in this folder and add one row to
// model.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/codec/tensor.h"
#include "common/core/error.h"
#include "common/model/rank_decay.h"
#include "common/model/tracked_basis.h"
#include "common/topology/flow.h"
#include "common/topology/step.h"

namespace cleave {

using Shape = std::vector<std::int64_t>;
using TensorList = std::vector<at::Tensor>;

struct BlockSpec;

struct ModelSpec {
  std::string name = {};  // such as "small_cnn"
  // The model's own parameters, such as {"width": "32"}; absent ones have defaults.
  std::map<std::string, std::string> parameters = {};
  Shape sampleShape = {};  // shape of one input, without the batch: {1, 28, 28}
  int classes = 0;
  // For "graph": head, body and tail (graph_blocks.h). Null for other models.
  std::shared_ptr<const std::vector<BlockSpec>> graphBlocks = nullptr;
  bool operator==(const ModelSpec&) const = default;
};

struct NamedTensor {
  std::string name;  // "conv1.weight"
  at::Tensor tensor;
};

// Mean and unbiased variance per channel of one batch norm in one micro-batch: [channels].
struct NormStatistics {
  at::Tensor mean;
  at::Tensor variance;
};

// What a block needs in addition to its input and its tensors.
struct BlockContext {
  std::uint64_t seed = 0;  // dropout draws from (seed, block name, step, i), in training only
  MicroBatch at;
  // In training, each batch norm appends its statistics of the micro-batch, in the model's order.
  // Borrowed; null: they are not recorded.
  std::vector<NormStatistics>* statistics = nullptr;
  // Called between the operators of a graph; may throw to end the action. Borrowed; null: none.
  const std::function<void()>* checkpoint = nullptr;
};

// The precision in which a part of the model computes. Parameters are always fp32; for bf16 and
// fp16, PyTorch's autocast casts them and chooses the operators that compute in that type.
enum class Precision : std::uint8_t { fp32, bf16, fp16 };
std::string_view precisionName(Precision precision);
// Throws UsageError "bad-precision".
Precision precisionFromName(std::string_view name);

// A parameter or buffer of a block.
struct ParameterSpec {
  std::string name;  // complete, such as "conv1.weight"
  Shape shape;
  bool isBuffer = false;    // buffers, such as running statistics, have no gradients
  bool isTrainable = true;  // for parameters: whether it has a gradient
  bool isSaved = true;      // whether it is part of the model's saved weights
  bool isInsert = false;    // whether it belongs to a learned insert (inserts.h)
  std::optional<DecayingFeatures> decaying = std::nullopt;  // of an insert whose rank shrinks
  std::optional<TrackedBasis> tracked = std::nullopt;  // of an insert whose basis follows its input
  at::ScalarType type = at::kFloat;
  // The initial values: `initial`; uniform in ±bound if there is one; or, for a matrix or the
  // weight of a 1 x 1 convolution, the first rows and columns of the identity.
  double initial = 0;
  std::optional<double> bound = std::nullopt;
  bool isIdentity = false;
};

// A batch norm's buffers, as positions in its block's tensors.
struct NormRow {
  std::size_t mean = 0;
  std::size_t variance = 0;
  std::optional<std::size_t> count;  // the counter of micro-batches
  double momentum = 0.1;             // weight of a micro-batch in the running statistics
  std::int64_t valuesPerSample = 0;  // per channel
};

// One of the tensors that a block passes to the next: a tensor of the cut after the block.
struct BlockOutput {
  Shape shape;  // without the batch
  CutTensor tensor = {};
  DType dtype = DType::f32;
};

struct PassValues {
  std::int64_t training = 0;
  std::int64_t inference = 0;
};

// A block is a function without tensors of its own, so that it can run with different sets of
// tensors.
struct BlockSpec {
  // Returns the outputs. `x`: the outputs of the previous block, then the inputs of the batch that
  // `batchInputs` lists; each is [samples, …]. `tensors` has one tensor for each ParameterSpec of
  // the block, in that order. In training, buffers of batch norms are neither read nor written.
  using Forward = std::function<TensorList(const TensorList& x, std::span<const at::Tensor> tensors,
                                           const BlockContext& context)>;

  std::string name;
  std::vector<BlockOutput> outputs;
  // Indices of the batch's inputs that this block takes in addition to the previous outputs.
  std::vector<std::size_t> batchInputs;
  std::vector<ParameterSpec> tensors;
  std::vector<NormRow> norms;  // in the order in which forward records their statistics
  // Values per sample that forward keeps in memory for backward: the outputs of all layers.
  std::int64_t savedPerSample = 0;
  // Values per sample that exist besides in a forward and its backward, and that exist in a forward
  // without autograd, at most. If missing: twice the saved values and the inputs.
  std::optional<PassValues> passes;
  Forward forward;
  Precision precision = Precision::fp32;

  const Shape& outputShape() const { return outputs.front().shape; }
};

// Number of elements in the parameters, or in the buffers, of blocks [first, last).
std::int64_t parameterCount(const std::vector<BlockSpec>& blocks, int first, int last);
std::int64_t bufferCount(const std::vector<BlockSpec>& blocks, int first, int last);
// Like parameterCount(), but counts only the parameters that are trained.
std::int64_t trainedCount(const std::vector<BlockSpec>& blocks, int first, int last);

struct ModelRow {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view parameters;   // "width=8..512 (32), dropout=0..0.9 (0.1)"
  std::string_view example;      // of the configuration, such as "{name: mlp, width: 64}"
  std::vector<BlockSpec> (*blocks)(const ModelSpec& spec);  // throws UsageError
  std::pair<int, int> (*defaultCuts)(const ModelSpec& spec);
  bool isForBenchmarks = false;  // servers allow it only if their configuration names it
};

std::span<const ModelRow> modelTable();
// Throws UsageError with the nearest known name.
const ModelRow& findModel(std::string_view name);

// Where the model is split: head = blocks [0, cut0), body = [cut0, cut1), tail = [cut1, end). If
// several bodies follow each other, each server has the cuts before and after its own body, and the
// client has the first and the last one.
struct Cuts {
  int cut0 = 0;
  int cut1 = 0;
  int number0 = 0;  // number of cut0 among all cuts of the run, as in "activation/0"
  int number1 = 1;
};
// Throws UsageError unless 1 <= cut0 < cut1 < number of blocks; the message lists the blocks with
// their positions.
void checkCuts(const std::vector<BlockSpec>& blocks, const Cuts& cuts);
// Whether each batch norm has at least 2 values per channel in a micro-batch of `minSamples`.
bool fitsBatchNorm(const std::vector<BlockSpec>& blocks, std::uint32_t minSamples);
// Throws UsageError "batch-norm-too-few" unless fitsBatchNorm().
void checkBatchNorm(const std::vector<BlockSpec>& blocks, std::uint32_t minSamples);
// Whether a batch norm computes statistics from the samples in training.
bool hasBatchNorm(const std::vector<BlockSpec>& blocks);

// Reads a model's own parameters. finish() rejects unknown ones and names the nearest known one.
// The methods throw UsageError.
class ModelParameters {
 public:
  explicit ModelParameters(const ModelSpec& spec) : spec_(spec) {}
  std::int64_t integer(const std::string& key, std::int64_t min, std::int64_t max,
                       std::int64_t defaultValue);
  double number(const std::string& key, double min, double max, double defaultValue);
  // One of `choices`; the first is the default.
  std::string choice(const std::string& key, const std::vector<std::string>& choices);
  void finish() const;

 private:
  const ModelSpec& spec_;
  std::vector<std::string> known_;
};

// Values for the parameters and buffers of consecutive blocks, in the model's order.
class ParameterSet {
 public:
  // Makes the tensors of blocks [first, last). Initial values depend on (seed, name), and are drawn
  // on the CPU so that they do not depend on the device. A parameter with the same name as one of
  // an earlier block or of `tied` is tied to it: the two share memory, but have separate gradients.
  ParameterSet(const std::vector<BlockSpec>& blocks, int first, int last, std::uint64_t seed,
               at::Device device = at::kCPU, const ParameterSet* tied = nullptr);

  const std::vector<NamedTensor>& parameters() const { return parameters_; }  // tied ones once
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  // Buffers that are not part of the model's saved weights.
  const std::vector<NamedTensor>& constants() const { return constants_; }
  bool has(const std::string& parameter) const;
  // All tensors, in the order of the blocks' ParameterSpecs; they share memory with parameters(),
  // buffers() and constants().
  std::span<const at::Tensor> tensors() const { return tensors_; }
  void clearGradients();
  // Returns a set for the same blocks whose parameters are separate leaves of autograd, so that
  // they have gradients of their own. `values`: one tensor per element of parameters(), whose
  // memory the leaves share. Everything else is shared with this set. `tied`: as for the
  // constructor, and `tiedLeaves`: its leaves.
  ParameterSet leaves(const std::vector<at::Tensor>& values, const ParameterSet* tied,
                      const ParameterSet* tiedLeaves) const;
  // Adds the gradients of tied parameters to those of the parameters that they are tied to. Call
  // when all gradients of a step have been computed; further calls do nothing.
  void joinGradients() const;
  // Updates the running statistics of all batch norms with those of one micro-batch, which a
  // forward recorded: running = (1 - momentum) x running + momentum x micro-batch, as PyTorch does.
  void addStatistics(const std::vector<NormStatistics>& statistics);

 private:
  ParameterSet() = default;

  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  std::vector<NamedTensor> constants_;
  std::vector<at::Tensor> tensors_;
  struct Tied {
    at::Tensor first, second;
  };
  std::vector<Tied> tied_;
  std::vector<NormRow> norms_;  // positions are in tensors_
};

// Depends on each bit of the parameters that are trained, but not on the order of a tensor's
// values.
std::uint64_t digestOfTrained(const std::vector<NamedTensor>& parameters);

// Consecutive blocks of a model. A ModelPart owns no tensors: each call takes a ParameterSet that
// was made for the same blocks.
class ModelPart {
 public:
  // Blocks [first, last). At each position in `cutsInside` that is strictly between them, the
  // tensor and its gradient are converted to canonical form, as they would be on the wire.
  ModelPart(const std::vector<BlockSpec>& blocks, int first, int last,
            std::vector<int> cutsInside = {});

  // Returns the outputs of the last block. `x`: the outputs of the block before the first one.
  // `batch`: all inputs of the batch; blocks take the ones that they need. Records autograd's graph
  // unless the caller has disabled it.
  TensorList forward(TensorList x, const TensorList& batch, const ParameterSet& set,
                     const BlockContext& context) const;
  // Sums the squares of each segment between inner cuts, then adds those sums, in the same order as
  // the client adds the reports of head, body and tail. The result is therefore bit-identical to
  // their sum.
  GradientReport gradientReport(const ParameterSet& set) const;

 private:
  bool isCutInside(int position) const;
  static at::Tensor crossCut(const at::Tensor& x);

  std::vector<BlockSpec> blocks_;
  int first_ = 0;
  std::vector<int> cutsInside_;
  // For each inner cut, the number of parameters before it.
  std::vector<std::size_t> cutParameters_;
};

}  // namespace cleave
