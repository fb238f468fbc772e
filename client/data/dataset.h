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
  // The same as training in `epoch` sees it: augmented, where that was asked for.
  virtual std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                                       std::span<float> out) const {
    static_cast<void>(epoch);
    return read(index, out);
  }
};

// What becomes of the pixels of a file, in this order.
struct ImageOptions {
  // For training alone: each image is flipped left to right with probability 1/2, then moved by up
  // to cropPadding pixels each way, and black comes in at the edges; that is a random crop of the
  // image padded with so many zeros. Draws are keyed by (seed, "augment", epoch, index).
  bool flip = false;
  int cropPadding = 0;
  std::uint64_t seed = 0;
  // Pixels become (x / 255 - mean) / deviation: of each channel, or one value for all.
  std::vector<double> mean = {0};
  std::vector<double> deviation = {1};
  // Height and width of what the model gets; 0: as in the file. Bilinear, as PyTorch's interpolate
  // with align_corners=False and without antialiasing.
  std::int64_t resize = 0;
};

// IDX images and labels, plain or gzip (by content, not by name). Throws UsageError that names the
// file and the fault: missing, empty, not IDX, truncated, trailing bytes, counts that differ, label
// out of range.
struct IdxOptions {
  std::string images;
  std::string labels;
  int classes = 10;
  ImageOptions image;
};
std::unique_ptr<Dataset> openIdx(const IdxOptions& options);

// The binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the files of their archives in
// one folder, or NAME.gz where NAME is missing. A file may hold any number of records. Throws
// UsageError that names the file and the fault: missing, empty, not a whole number of records,
// label out of range.
enum class CifarKind { cifar10, cifar100Fine, cifar100Coarse };
struct CifarOptions {
  std::string folder;
  CifarKind kind = CifarKind::cifar10;
  bool train = true;  // data_batch_1…5.bin or train.bin; else test_batch.bin or test.bin
  ImageOptions image;
};
std::unique_ptr<Dataset> openCifar(const CifarOptions& options);

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
