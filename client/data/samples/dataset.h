// The interface of all datasets. A sample consists of arrays: one or more inputs of the model, and
// the target, such as a class. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/data/files/damage.h"
#include "common/codec/tensor.h"

namespace cleave {

struct SampleArray {
  std::string name;  // "input_ids"; empty if the format has no names
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // {} for a number
  // The largest value of all samples; -1: unknown, because finding it would read all of the data.
  std::int64_t maxValue = -1;
  std::int64_t minValue = 0;  // the smallest one if it is negative and known

  // Whether samples of both fit together, whatever their values.
  bool operator==(const SampleArray& other) const {
    return name == other.name && dtype == other.dtype && shape == other.shape;
  }
};
// The array for a batch of `samples` samples: [samples, …], contiguous.
TensorSpec specOf(const SampleArray& array, std::uint32_t samples);
std::string toString(const SampleArray& array);  // "input_ids i64[128]"

// Memory for one sample: one span of bytes per array, of exactly its size.
using SampleMemory = std::span<const std::span<std::byte>>;

class Sha256;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint32_t size() const = 0;
  // The arrays of every sample: the model's inputs, then the target.
  virtual std::vector<SampleArray> arrays() const = 0;
  // The number of classes, if the target is a class; else 0.
  virtual int classes() const = 0;
  // Indexed by class; empty if the classes have no names.
  virtual std::vector<std::string> classNames() const { return {}; }
  // The class of a sample. Empty if the target is not a class, or if reading the class costs almost
  // as much as reading the whole sample.
  virtual std::optional<std::int64_t> label(std::uint32_t index) const;
  // Names the sample in messages: for example its file, or "sample 17".
  virtual std::string sampleName(std::uint32_t index) const;
  // Adds to the digest what identifies the sample at little cost: its label and, depending on the
  // format, its name and size, or the values that are in memory. By default the label. See
  // digestOf().
  virtual void identify(std::uint32_t index, Sha256& digest) const;
  // Adds a small part of the content that identify() leaves out, with at most a few short reads.
  // Adds less, and throws nothing, if the sample cannot be read. By default nothing.
  virtual void identifyContent(std::uint32_t index, Sha256& digest) const;
  // Values derived from the training set that are needed to read other data consistently, such as
  // class names and column statistics. Null if there are none.
  virtual nlohmann::json learned() const { return nullptr; }
  // Writes sample `index`, ready for the model (scaled and normalised). With an epoch, applies the
  // training augmentation of that epoch, if one is configured. Any thread.
  virtual void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
                     SampleMemory out) const = 0;
};

// Samples that consist of one array of floats and a class.
class LabeledDataset : public Dataset {
 public:
  virtual std::vector<std::int64_t> sampleShape() const = 0;  // such as {1, 28, 28}
  // Like write(), but returns the class, in [0, classes()).
  virtual std::int64_t read(std::uint32_t index, std::span<float> out) const = 0;
  virtual std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                                       std::span<float> out) const {
    static_cast<void>(epoch);
    return read(index, out);
  }

  std::vector<SampleArray> arrays() const final;
  void write(std::uint32_t index, std::optional<std::uint64_t> epoch, SampleMemory out) const final;
};

// Whether a training set with `now` as its learned() has the classes and column statistics of
// `recorded`, which an earlier version may have written: it recorded no form of integers.
bool isSameLearned(const nlohmann::json& recorded, nlohmann::json now);

// The class's name among `names`, or its number if it has none.
std::string classNameOf(const std::vector<std::string>& names, std::size_t index);

inline constexpr const char* kResizeKey = "data.resize";
// Throws UsageError "sample-size" about kResizeKey: images have different sizes, but the model
// needs one.
[[noreturn]] void throwDifferentSizes(const std::string& sentence);

// What happens to an image between its file and the model. ImageTransforms (transforms.h) applies
// this and documents the order. Random numbers are keyed by (seed, "augment", epoch, index).
struct ImageOptions {
  // Training only: each image is flipped left to right with probability 1/2, then moved by up to
  // cropPadding pixels in each direction with black edges, which equals a random crop of the
  // zero-padded image.
  bool flip = false;
  int cropPadding = 0;
  // Training only, with `crop`: a random part of the image is resized to crop x crop, in place of
  // the resize and the centre crop. {min, max}: the part's area as a fraction of the image's;
  // empty: off.
  std::vector<double> cropScale = {};
  std::vector<double> cropRatio = {0.75, 1.3333333333333333};  // {min, max} of its width / height
  // Training only: colours change by random factors in [1 - x, 1 + x]; hue is shifted by a random
  // fraction of the colour circle in [-x, x].
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  // Training only: the probability with which a random rectangle is erased.
  double erasing = 0;
  std::uint64_t seed = 0;
  // Pixels become (x / 255 - mean) / std: one value per channel, or one for all.
  std::vector<double> mean = {0};
  std::vector<double> stddev = {1};
  // Height and width of the model's input; with `crop`, the length of the image's shorter side
  // before the crop. 0: no resize. Bilinear, and antialiased if an axis gets shorter.
  std::int64_t resize = 0;
  std::int64_t crop = 0;  // height and width of the crop at the centre; 0: none
};
// Whether the options change a training image from epoch to epoch.
bool isAugmented(const ImageOptions& options);
// Whether the options change the image beyond its normalisation by mean and std.
bool changesPixels(const ImageOptions& options);

// IDX images and labels, plain or gzip (detected by content). Throws UsageError with the file and
// the fault: missing, empty, not IDX, truncated, trailing bytes, different counts, label out of
// range.
struct IdxOptions {
  std::string images;
  std::string labels;  // empty: none, all classes are 0
  int classes = 10;
  ImageOptions image;
  DamageReport report = nullptr;  // receives labels out of range, which are read as 0
};
std::unique_ptr<LabeledDataset> openIdx(const IdxOptions& options);

// The binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the archive's files in one
// folder, or NAME.gz if NAME is missing. A file may have any number of records. Throws UsageError
// with the file and the fault: missing, empty, not a whole number of records, label out of range.
enum class CifarKind { cifar10, cifar100Fine, cifar100Coarse };
struct CifarOptions {
  std::string folder;
  CifarKind kind = CifarKind::cifar10;
  bool train = true;  // true: data_batch_1…5.bin or train.bin; false: test_batch.bin or test.bin
  ImageOptions image;
  // Receives damaged files, which are left out, and labels out of range, which are read as 0.
  DamageReport report = nullptr;
};
std::unique_ptr<LabeledDataset> openCifar(const CifarOptions& options);

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
std::unique_ptr<LabeledDataset> makeSynthetic(const SyntheticOptions& options);

// Samples with named arrays, from safetensors or .npy files. Arrays in files have the shape
// [samples, …]. Integers and booleans are read as i64, floats as f32. Arrays of up to 1 GiB are
// read for the range of their integers and for NaN. Throws UsageError with the file and the fault.
struct TensorsOptions {
  // A safetensors file, or a folder. A folder's *.safetensors files are joined in the order of
  // their names; without such files, each NAME.npy is one array.
  std::string file;
  std::string target = "labels";  // the other arrays are inputs
  int classes = 0;                // number of classes, if the target is a class; 0: not known
  // The training set's learned(). If the file has no target, the target is zeros, with the shape
  // and type of the training set's target. Null: a missing target is an error.
  nlohmann::json learned = nullptr;
  // If the target is classes: the value of targets that are no class. Other negative values, and
  // classes from `classes` on, are a DataError "bad-label".
  std::optional<std::int64_t> ignoredLabel = {};
  DamageReport report = nullptr;  // receives the samples with such a label, and damaged files
};
std::unique_ptr<Dataset> openTensors(const TensorsOptions& options);
// A view of `data` whose inputs are the arrays `names`, in this order. The target may be one of
// them. Throws UsageError "no-input" if one is missing.
std::shared_ptr<const Dataset> selectInputs(std::shared_ptr<const Dataset> data,
                                            const std::vector<std::string>& names);

// Samples [first, first + count) of another dataset.
std::unique_ptr<Dataset> sliceDataset(std::shared_ptr<const Dataset> whole, std::uint32_t first,
                                      std::uint32_t count);
// The samples of all parts, one after the other. A sample is augmented as in its part. Requires a
// part; throws UsageError "other-data" if the parts have different arrays or classes.
std::unique_ptr<Dataset> joinDatasets(std::vector<std::shared_ptr<const Dataset>> parts);

}  // namespace cleave
