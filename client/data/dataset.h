// The interface of all datasets: samples of one shape with one label each. No Torch.
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
  virtual std::vector<std::int64_t> sampleShape() const = 0;  // such as {1, 28, 28}
  virtual int classes() const = 0;
  // Writes sample `index`, ready for the model (scaled and normalised), and returns its label in
  // [0, classes). Any thread.
  virtual std::int64_t read(std::uint32_t index, std::span<float> out) const = 0;
  // The sample as training uses it in `epoch`: augmented if the options say so.
  virtual std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                                       std::span<float> out) const {
    static_cast<void>(epoch);
    return read(index, out);
  }
};

// How an image file's pixels are processed, in this order.
struct ImageOptions {
  // Training only: each image is flipped left to right with probability 1/2, then moved by up to
  // cropPadding pixels in each direction with black edges, which equals a random crop of the
  // zero-padded image. Draws are keyed by (seed, "augment", epoch, index).
  bool flip = false;
  int cropPadding = 0;
  std::uint64_t seed = 0;
  // Pixels become (x / 255 - mean) / std: one value per channel, or one for all.
  std::vector<double> mean = {0};
  std::vector<double> deviation = {1};
  // Height and width of the model's input; 0: as in the file. Bilinear, like PyTorch's interpolate
  // with align_corners=False and without antialiasing.
  std::int64_t resize = 0;
};

// IDX images and labels, plain or gzip (detected by content). Throws UsageError with the file and
// the fault: missing, empty, not IDX, truncated, trailing bytes, different counts, label out of
// range.
struct IdxOptions {
  std::string images;
  std::string labels;
  int classes = 10;
  ImageOptions image;
};
std::unique_ptr<Dataset> openIdx(const IdxOptions& options);

// The binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the archive's files in one
// folder, or NAME.gz if NAME is missing. A file may have any number of records. Throws UsageError
// with the file and the fault: missing, empty, not a whole number of records, label out of range.
enum class CifarKind { cifar10, cifar100Fine, cifar100Coarse };
struct CifarOptions {
  std::string folder;
  CifarKind kind = CifarKind::cifar10;
  bool train = true;  // true: data_batch_1…5.bin or train.bin; false: test_batch.bin or test.bin
  ImageOptions image;
};
std::unique_ptr<Dataset> openCifar(const CifarOptions& options);

// Learnable data generated from a seed: each class is a random pattern, and each sample is its
// class's pattern plus noise.
struct SyntheticOptions {
  std::vector<std::int64_t> shape;
  int classes = 10;
  std::uint32_t size = 0;
  std::uint64_t seed = 0;
  std::uint64_t split = 0;  // splits have different samples but the same class patterns
  double noise = 1;
};
std::unique_ptr<Dataset> makeSynthetic(const SyntheticOptions& options);

// Samples [first, first + count) of another dataset.
std::unique_ptr<Dataset> sliceDataset(std::shared_ptr<const Dataset> whole, std::uint32_t first,
                                      std::uint32_t count);

}  // namespace cleave
