// The building blocks of models.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace cleave {

// Weight of one micro-batch in the running statistics of batch norms.
inline constexpr double kNormMomentum = 0.1;

// Distribution from which a layer's weight is initialized.
enum class InitialWeight : std::uint8_t {
  // Uniform in ±1 / sqrt(fan-in), also for the bias, as is PyTorch's default.
  inverseFanIn,
  // Uniform with standard deviation sqrt(2 / (outputs x kernel area / groups)), which preserves the
  // magnitude of the gradients through ReLUs (He et al., "Delving deep into rectifiers", ICCV
  // 2015); the bias is 0.
  heFanOut,
  // Uniform with standard deviation 0.01; the bias is 0.
  small,
};

struct Conv2dOptions {
  std::int64_t channels = 0;  // output channels
  std::int64_t kernel = 1;    // the kernel is kernel x kernel
  std::int64_t stride = 1;
  std::int64_t padding = 0;  // zeros on each side
  std::int64_t groups = 1;
  bool bias = true;
  InitialWeight initial = InitialWeight::inverseFanIn;
};

// Combines consecutive blocks into one. `addInput`: adds its input to its output.
BlockSpec joinBlocks(const std::string& name, std::vector<BlockSpec> blocks, bool addInput = false);

// Describes a model block by block: each call appends one block and computes its output shape
// without building anything. Parameter names are `<block>.weight` and `<block>.bias`, as in
// torchvision. Throws UsageError if a block cannot take the shape of the block before it.
class BlockChain {
 public:
  // Throws UsageError if the sample shape or the number of classes is invalid.
  explicit BlockChain(const ModelSpec& spec);

  const Shape& shape() const { return shape_; }  // after the last block, without the batch

  void linear(const std::string& name, std::int64_t outputs,
              InitialWeight initial = InitialWeight::inverseFanIn);
  void conv2d(const std::string& name, const Conv2dOptions& options);
  // Normalizes over dimension 1, with eps 1e-5: the features of [B, F], the channels of
  // [B, C, H, W]. Training uses the micro-batch's statistics and records them in the context;
  // evaluation uses the running ones. Three buffers: running mean, running variance, and the number
  // of micro-batches in them.
  void batchNorm(const std::string& name);
  void relu(const std::string& name);
  void relu6(const std::string& name);
  // Windows of size x size without overlap; incomplete windows at the edges are dropped.
  void maxPool2d(const std::string& name, std::int64_t size);
  void averagePool2d(const std::string& name, std::int64_t size);
  // The mean of each channel: [C, H, W] -> [C].
  void globalAveragePool(const std::string& name);
  void flatten(const std::string& name);
  // In training, sets each value to zero with probability p and scales the rest by 1 / (1 - p).
  void dropout(const std::string& name, double p);

  // Combines the layers that `append` adds into one block. The parameters keep the layers' names,
  // which must begin with `name` and a dot.
  void group(const std::string& name, const std::function<void()>& append);
  // Like group(), and adds the block's input to its last layer's output, which must have the same
  // shape.
  void residual(const std::string& name, const std::function<void()>& append);

  std::vector<BlockSpec> take();

 private:
  BlockSpec& append(const std::string& name);
  void join(const std::string& name, const std::function<void()>& append, bool addInput);
  void pool2d(const std::string& name, std::int64_t size);
  void requireRank(const std::string& name, std::size_t rank, const char* what) const;

  Shape shape_;
  std::vector<BlockSpec> rows_;
  std::optional<std::size_t> group_;  // index of the first layer of the group being appended
};

// Example: "[1, 28, 28]"
std::string toString(const Shape& shape);
// Product of the dimensions.
std::int64_t elementCount(const Shape& shape);

}  // namespace cleave
