// The building blocks of models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace cleave {

// Writes a model down block by block: each call appends one, computes the shape it leaves, and
// builds nothing. Parameter names are `<block>.weight` and `<block>.bias`, as in torchvision.
// Throws UsageError where a block cannot take the shape before it.
class BlockChain {
 public:
  // Throws UsageError: a sample shape or a number of classes that no model can have.
  explicit BlockChain(const ModelSpec& spec);

  const Shape& shape() const { return shape_; }  // without the batch, after the last block

  // Initial weight and bias: uniform in ±1 / sqrt(inputs of one output), PyTorch's default.
  void linear(const std::string& name, std::int64_t outputs);
  void conv2d(const std::string& name, std::int64_t channels, std::int64_t kernel,
              std::int64_t padding);
  // Running statistics with momentum 0.1, eps 1e-5. Over dimension 1: features of [B, F], channels
  // of [B, C, H, W].
  void batchNorm(const std::string& name);
  void relu(const std::string& name);
  // Windows of size x size without overlap; what is left at the edges is dropped.
  void maxPool2d(const std::string& name, std::int64_t size);
  // The mean of each channel: [C, H, W] -> [C].
  void globalAveragePool(const std::string& name);
  void flatten(const std::string& name);
  // Zeroes values with probability p in training, and scales the others by 1 / (1 - p).
  void dropout(const std::string& name, double p);

  std::vector<BlockRow> take() { return std::move(rows_); }

 private:
  BlockRow& append(const std::string& name);
  void requireRank(const std::string& name, std::size_t rank, const char* what) const;

  Shape shape_;
  std::vector<BlockRow> rows_;
};

// "[1, 28, 28]"
std::string toString(const Shape& shape);
// Product of the dimensions.
std::int64_t elementCount(const Shape& shape);

}  // namespace cleave
