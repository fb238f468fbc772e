// A model is a list of named blocks. A cut is a position in that list, and a daemon builds only its
// own blocks. To add a model, write one file in this folder and add one row to model.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"
#include "common/topology/step.h"

namespace cleave {

using Shape = std::vector<std::int64_t>;

struct ModelSpec {
  std::string name;  // such as "small_cnn"
  std::map<std::string, std::string>
      parameters;     // the model's own, such as {"width": "32"}; absent ones have defaults
  Shape sampleShape;  // of one input, without the batch: {1, 28, 28}
  int classes = 0;
};

struct NamedTensor {
  std::string name;  // "conv1.weight"
  at::Tensor tensor;
};

// What a block needs besides its input: dropout draws from (seed, block name, step, i), in training
// only.
struct BlockContext {
  std::uint64_t seed = 0;
  MicroBatch at;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual at::Tensor forward(const at::Tensor& x, const BlockContext& context) = 0;
  // Parameters require gradients; buffers (batch norm's statistics) do not. The names are complete,
  // such as "conv1.weight".
  virtual std::vector<NamedTensor> parameters() const { return {}; }
  virtual std::vector<NamedTensor> buffers() const { return {}; }
};

// A parameter or buffer of a block that has not been built.
struct TensorRow {
  std::string name;  // "conv1.weight"
  Shape shape;
  bool isBuffer = false;
  at::ScalarType type = at::kFloat;

  bool operator==(const TensorRow&) const = default;
};

struct BlockRow {
  std::string name;
  Shape outputShape;  // without the batch
  std::vector<TensorRow> tensors;
  // Values per sample that forward keeps in memory for backward: the outputs of all layers.
  std::int64_t savedPerSample = 0;
  // Minimum number of values per channel and sample over the batch norms of this block; 0: it has
  // none. Multiplied by the samples of a micro-batch, it must be at least 2.
  std::int64_t normValuesPerSample = 0;
  std::function<std::unique_ptr<Block>(std::uint64_t seed)>
      make;  // initial values from (seed, parameter name)
};

// Number of elements in the parameters, or in the buffers, of blocks [first, last).
std::int64_t parameterCount(const std::vector<BlockRow>& blocks, int first, int last);
std::int64_t bufferCount(const std::vector<BlockRow>& blocks, int first, int last);

struct ModelRow {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view parameters;   // "width=8..512 (32), dropout=0..0.9 (0.1)"
  std::vector<BlockRow> (*blocks)(const ModelSpec& spec);  // throws UsageError
  std::pair<int, int> (*defaultCuts)(const ModelSpec& spec);
};

std::span<const ModelRow> modelTable();
// Throws UsageError with the nearest known name.
const ModelRow& findModel(std::string_view name);

// Where the model is split: head = blocks [0, cut0), body = [cut0, cut1), tail = [cut1, end).
struct Cuts {
  int cut0 = 0;
  int cut1 = 0;
};
// Throws UsageError unless 1 <= cut0 < cut1 < number of blocks; the message lists the blocks with
// their positions.
void checkCuts(const std::vector<BlockRow>& blocks, const Cuts& cuts);
// Throws UsageError if a batch norm would see fewer than 2 values per channel in a micro-batch of
// `leastSamples`.
void checkBatchNorm(const std::vector<BlockRow>& blocks, std::uint32_t leastSamples);

// Reads a model's own parameters. finish() rejects unknown ones and names the nearest known one.
// The methods throw UsageError.
class ModelParameters {
 public:
  explicit ModelParameters(const ModelSpec& spec) : spec_(spec) {}
  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t greatest,
                       std::int64_t defaultValue);
  double number(const std::string& key, double least, double greatest, double defaultValue);
  // One of `choices`; the first is the default.
  std::string choice(const std::string& key, const std::vector<std::string>& choices);
  void finish() const;

 private:
  const ModelSpec& spec_;
  std::vector<std::string> known_;
};

// Consecutive blocks of a model, built.
class ModelPart {
 public:
  // Blocks [first, last). At each position in `cutsInside` that is strictly between them, the
  // tensor and its gradient are converted to canonical form, as they would be on the wire.
  ModelPart(const std::vector<BlockRow>& blocks, int first, int last, std::uint64_t seed,
            std::vector<int> cutsInside = {}, at::Device device = at::kCPU);

  // `context.seed` is the seed given to the constructor. Records autograd's graph unless the caller
  // has disabled it.
  at::Tensor forward(at::Tensor x, const BlockContext& context);
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  // Sums the squares of each segment between inner cuts, then adds those sums, in the order in
  // which the reports of head, body and tail are added: the result is bit-identical to theirs.
  GradientReport gradientReport() const;
  void clearGradients();

 private:
  bool isCutInside(int position) const;
  static at::Tensor crossCut(const at::Tensor& x);

  std::vector<std::unique_ptr<Block>> blocks_;
  int first_ = 0;
  std::vector<int> cutsInside_;
  std::vector<std::size_t> cutParameters_;  // per inner cut, the number of parameters before it
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
};

}  // namespace cleave
