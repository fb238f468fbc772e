// The building blocks of models.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace cleave {

// How a layer's weight starts.
enum class InitialWeight : std::uint8_t {
  // Uniform in ±1 / sqrt(inputs of one output), the bias too: PyTorch's default.
  inverseFanIn,
  // Uniform with the deviation sqrt(2 / (outputs x kernel area / groups)), which keeps the
  // gradients'
  // size through ReLUs (He et al., "Delving deep into rectifiers", ICCV 2015); the bias is 0.
  heFanOut,
  // Uniform with the deviation 0.01; the bias is 0.
  small,
};

struct Conv2dOptions {
  std::int64_t channels = 0;  // of the output
  std::int64_t kernel = 1;    // kernel x kernel
  std::int64_t stride = 1;
  std::int64_t padding = 0;  // zeroes on each side
  std::int64_t groups = 1;
  bool bias = true;
  InitialWeight initial = InitialWeight::inverseFanIn;
};

// Writes a model down block by block: each call appends one, computes the shape it leaves, and
// builds nothing. Parameter names are `<block>.weight` and `<block>.bias`, as in torchvision.
// Throws UsageError where a block cannot take the shape before it.
class BlockChain {
 public:
  // Throws UsageError: a sample shape or a number of classes that no model can have.
  explicit BlockChain(const ModelSpec& spec);

  const Shape& shape() const { return shape_; }  // without the batch, after the last block

  void linear(const std::string& name, std::int64_t outputs,
              InitialWeight initial = InitialWeight::inverseFanIn);
  void conv2d(const std::string& name, const Conv2dOptions& options);
  // Running statistics with momentum 0.1, eps 1e-5. Over dimension 1: features of [B, F], channels
  // of [B, C, H, W].
  void batchNorm(const std::string& name);
  void relu(const std::string& name);
  void relu6(const std::string& name);
  // Windows of size x size without overlap; what is left at the edges is dropped.
  void maxPool2d(const std::string& name, std::int64_t size);
  void averagePool2d(const std::string& name, std::int64_t size);
  // The mean of each channel: [C, H, W] -> [C].
  void globalAveragePool(const std::string& name);
  void flatten(const std::string& name);
  // Zeroes values with probability p in training, and scales the others by 1 / (1 - p).
  void dropout(const std::string& name, double p);

  // The layers that `append` writes down become one block; its parameters keep the layers' names,
  // which begin with `name` and a dot.
  void group(const std::string& name, const std::function<void()>& append);
  // The same, and the block's input is added to the output of its last layer, which has its shape.
  void residual(const std::string& name, const std::function<void()>& append);

  std::vector<BlockRow> take() { return std::move(rows_); }

 private:
  BlockRow& append(const std::string& name);
  void join(const std::string& name, const std::function<void()>& append, bool addInput);
  void pool2d(const std::string& name, std::int64_t size);
  void requireRank(const std::string& name, std::size_t rank, const char* what) const;

  Shape shape_;
  std::vector<BlockRow> rows_;
  bool inGroup_ = false;
};

// "[1, 28, 28]"
std::string toString(const Shape& shape);
// Product of the dimensions.
std::int64_t elementCount(const Shape& shape);

}  // namespace cleave
