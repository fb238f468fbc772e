// Data behind one interface: samples of one shape with one label each. No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/core/error.h"

namespace cleave {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint32_t size() const = 0;
  virtual std::vector<std::int64_t> sampleShape() const = 0;  // {1, 28, 28}
  virtual int classes() const = 0;
  // Writes sample `index`, ready for the model (scaled, normalised), and returns its label in [0,
  // classes). Any thread.
  virtual std::int64_t read(std::uint32_t index, std::span<float> out) const = 0;
};

// IDX images and labels, plain or gzip (by content, not by name). Pixels become (x / 255 - mean) /
// deviation. Throws UsageError that names the file and the fault: missing, empty, not IDX,
// truncated, trailing bytes, counts that differ, label out of range.
struct IdxOptions {
  std::string images;
  std::string labels;
  int classes = 10;
  double mean = 0;
  double deviation = 1;
};
std::unique_ptr<Dataset> openIdx(const IdxOptions& options);

// Seeded and learnable: each class is a random pattern, each sample its class's pattern plus noise.
struct SyntheticOptions {
  std::vector<std::int64_t> shape;
  int classes = 10;
  std::uint32_t size = 0;
  std::uint64_t seed = 0;
  std::uint64_t split = 0;  // samples of another split differ, the classes' patterns do not
  double noise = 1;
};
std::unique_ptr<Dataset> makeSynthetic(const SyntheticOptions& options);

// Samples [first, first + count) of another dataset.
std::unique_ptr<Dataset> sliceDataset(std::shared_ptr<const Dataset> whole, std::uint32_t first,
                                      std::uint32_t count);

}  // namespace cleave
