// IDX, the format of MNIST and similar datasets (http://yann.lecun.com/exdb/mnist): two zero bytes,
// the element type (8: unsigned bytes), the rank, each dimension as a big-endian 32-bit number,
// then the elements.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "client/data/files/unpack.h"
#include "client/data/samples/data_digest.h"
#include "client/data/samples/images.h"

namespace cleave {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;

// The element types; values are stored in big-endian order.
struct ElementType {
  std::uint8_t code;
  std::size_t bytes;
  bool isInteger;
  double (*read)(const std::uint8_t* bytes);
};

template <typename Number, typename Bits>
double readBigEndian(const std::uint8_t* bytes) {
  Bits bits = 0;
  for (std::size_t n = 0; n < sizeof bits; ++n) bits = static_cast<Bits>(bits << 8 | bytes[n]);
  return static_cast<double>(std::bit_cast<Number>(bits));
}
template <typename Byte>
double readByte(const std::uint8_t* bytes) {
  return static_cast<Byte>(*bytes);
}

constexpr std::array<ElementType, 6> kElementTypes = {
    {{kUnsignedByte, 1, true, readByte<std::uint8_t>},
     {0x09, 1, true, readByte<std::int8_t>},
     {0x0B, 2, true, readBigEndian<std::int16_t, std::uint16_t>},
     {0x0C, 4, true, readBigEndian<std::int32_t, std::uint32_t>},
     {0x0D, 4, false, readBigEndian<float, std::uint32_t>},
     {0x0E, 8, false, readBigEndian<double, std::uint64_t>}}};

struct IdxFile {
  const ElementType* type = nullptr;
  std::vector<std::uint32_t> dimensions;  // the first is the number of images or labels
  std::vector<std::uint8_t> bytes;        // header and elements
  std::size_t start = 0;                  // offset of the elements
};

std::uint32_t bigEndian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

// "60000 images of 28x28", "60000 labels"
std::string describe(const std::vector<std::uint32_t>& dimensions, const std::string& what) {
  std::string text = std::to_string(dimensions[0]) + " " + what;
  for (std::size_t d = 1; d < dimensions.size(); ++d) {
    text += (d == 1 ? " of " : "x") + std::to_string(dimensions[d]);
  }
  return text;
}

// The file size that the header implies. No dimension is 0. The product is checked against the
// limit at each step, so it cannot overflow.
std::size_t fileBytes(const IdxFile& file, const std::string& path, const std::string& what) {
  std::size_t bytes = file.type->bytes;
  for (const std::uint32_t dimension : file.dimensions) {
    if (bytes > kMaxDataBytes / dimension) {
      throwDamaged(path, "declares " + describe(file.dimensions, what) + ", more than 4 GiB");
    }
    bytes *= dimension;
  }
  return file.start + bytes;
}

// The hint for a file with a wrong rank; `what` is images or labels.
const char* rankFix(int rank, const std::string& what) {
  if (what == "labels" && rank >= 3)
    return "check that the paths of images and labels are not swapped";
  return what == "images" ? "write the samples as numbers, vectors, height x width, or channels x "
                            "height x width"
                          : "write one class number per sample, not one value per class";
}

const ElementType* typeOf(std::uint8_t code) {
  const auto found = std::find_if(kElementTypes.begin(), kElementTypes.end(),
                                  [&](const ElementType& each) { return each.code == code; });
  return found == kElementTypes.end() ? nullptr : &*found;
}

void checkHeader(const std::vector<std::uint8_t>& bytes, const std::string& path,
                 const std::string& what, const std::vector<int>& ranks) {
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) {
    throwDamaged(path, "is not an IDX file: it does not start with two zero bytes and a type",
                 "give an IDX file, plain or gzip");
  }
  const ElementType* const type = typeOf(bytes[2]);
  if (type == nullptr) {
    throwDamaged(path, "contains IDX elements of the unknown type " + std::to_string(bytes[2]),
                 "use one of the types 8, 9 and 11 to 14");
  }
  if (what == "labels" && !type->isInteger) {
    throwDamaged(path, "contains labels that are not integers",
                 "write class numbers, or use data.format: tensors for other targets");
  }
  const int rank = bytes[3];
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
    std::string expected = std::to_string(ranks.front());
    for (std::size_t r = 1; r < ranks.size(); ++r) expected += " or " + std::to_string(ranks[r]);
    throwDamaged(path,
                 "has rank " + std::to_string(rank) + ", but " + what + " have rank " + expected,
                 rankFix(rank, what));
  }
  const std::size_t start = 4 + 4 * static_cast<std::size_t>(rank);
  if (bytes.size() < start) {
    throwDamaged(path, "is truncated: its IDX header needs " + std::to_string(start) +
                           " bytes, but the file has only " + std::to_string(bytes.size()));
  }
}

IdxFile readIdx(const std::string& path, const std::string& what, const std::vector<int>& ranks) {
  IdxFile file;
  file.bytes = readUnpacked(path, kMaxDataBytes, Needs::twice);
  checkHeader(file.bytes, path, what, ranks);
  file.type = typeOf(file.bytes[2]);
  for (int d = 0; d < file.bytes[3]; ++d) {
    file.dimensions.push_back(
        bigEndian(file.bytes.data() + 4 + std::size_t{4} * static_cast<std::size_t>(d)));
  }
  file.start = 4 + 4 * file.dimensions.size();

  if (file.dimensions[0] == 0) {
    throw DataError("data-empty", path + " contains no " + what, "download the file again");
  }
  if (std::find(file.dimensions.begin(), file.dimensions.end(), 0u) != file.dimensions.end()) {
    throwDamaged(path, "declares " + describe(file.dimensions, what) + ", which have no pixels");
  }
  const std::size_t promised = fileBytes(file, path, what);
  const std::size_t held = file.bytes.size();
  if (held != promised) {
    const std::string fault = held < promised ? "is truncated" : "has trailing bytes";
    throwDamaged(path, fault + ": its header declares " + describe(file.dimensions, what) + " (" +
                           std::to_string(promised) + " bytes), but the file has " +
                           std::to_string(held) + " bytes");
  }
  return file;
}

// Rejects height x width x channels; the format is channels x height x width.
void refuseChannelsLast(const IdxFile& images, const std::string& path) {
  const auto isChannels = [](std::uint32_t count) {
    return count == 1 || count == 3 || count == 4;
  };
  if (images.dimensions.size() != 4) return;
  if (isChannels(images.dimensions[1]) || !isChannels(images.dimensions[3])) return;
  throwDamaged(path, "contains " + describe(images.dimensions, "images") + ": channels come last",
               "write the channels first; in NumPy: images.transpose(0, 3, 1, 2)");
}

[[noreturn]] void refuseLabel(const std::string& path, std::size_t sample, std::int64_t label,
                              int classes) {
  throwDamaged(path,
               "gives sample " + std::to_string(sample) + " the label " + std::to_string(label) +
                   (label < 0 ? ", but classes are numbered from 0"
                              : ", but with " + std::to_string(classes) +
                                    " classes the maximum is " + std::to_string(classes - 1)),
               label < 0 ? "number the classes from 0"
                         : "correct the labels, or set data.classes to their number");
}

// A label that is reported becomes 0.
std::vector<std::int64_t> readLabels(const IdxFile& file, const IdxOptions& options) {
  std::vector<std::int64_t> labels(file.dimensions[0]);
  for (std::size_t j = 0; j < labels.size(); ++j) {
    const double value = file.type->read(file.bytes.data() + file.start + j * file.type->bytes);
    const auto label = static_cast<std::int64_t>(value);
    const bool isClass = orReport(options.report, options.labels, [&] {
      if (label < 0 || label >= options.classes)
        refuseLabel(options.labels, j, label, options.classes);
    });
    labels[j] = isClass ? label : 0;
  }
  return labels;
}

// Samples that are not images of bytes: single numbers, vectors, or arrays of another type. A value
// becomes (value - mean) / std; bytes are divided by 255 first.
class IdxValues final : public LabeledDataset {
 public:
  IdxValues(IdxFile file, std::vector<std::int64_t> labels, const IdxOptions& options)
      : file_(std::move(file)), labels_(std::move(labels)), classes_(options.classes) {
    const ImageOptions& image = options.image;
    if (image.mean.size() != 1 || image.stddev.size() != 1 || changesPixels(image)) {
      throw UsageError("bad-config",
                       options.images +
                           " does not contain images of bytes, so it can only be "
                           "scaled with one data.mean and one data.std",
                       "give one value each for data.mean and data.std, and remove "
                       "data.resize, data.crop and data.augment")
          .about("data.augment");
    }
    mean_ = image.mean.front();
    stddev_ = image.stddev.front();
    // A single number becomes a vector of length 1, as models expect.
    shape_.assign(file_.dimensions.begin() + 1, file_.dimensions.end());
    if (shape_.empty()) shape_ = {1};
    if (shape_.size() == 2) shape_.insert(shape_.begin(), 1);  // grey images
  }

  std::uint32_t size() const override { return file_.dimensions[0]; }
  std::vector<std::int64_t> sampleShape() const override { return shape_; }
  int classes() const override { return classes_; }
  std::optional<std::int64_t> label(std::uint32_t index) const override { return labels_[index]; }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    const std::size_t bytes = (file_.bytes.size() - file_.start) / size();
    addPart(digest,
            std::as_bytes(std::span(file_.bytes).subspan(file_.start + index * bytes, bytes)));
  }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    const double scale = file_.type->code == kUnsignedByte ? 255 : 1;
    const std::uint8_t* value =
        file_.bytes.data() + file_.start + std::size_t{index} * out.size() * file_.type->bytes;
    for (float& each : out) {
      each = static_cast<float>((file_.type->read(value) / scale - mean_) / stddev_);
      value += file_.type->bytes;
    }
    return labels_[index];
  }

 private:
  IdxFile file_;
  std::vector<std::int64_t> labels_;
  int classes_;
  std::vector<std::int64_t> shape_;
  double mean_ = 0, stddev_ = 1;
};

}  // namespace

std::unique_ptr<LabeledDataset> openIdx(const IdxOptions& options) {
  IdxFile images = readIdx(options.images, "images", {1, 2, 3, 4});
  if (images.type->code == kUnsignedByte && images.dimensions.size() == 1) {
    throwDamaged(options.images, "has rank 1, like a file of labels",
                 "check that the paths of images and labels are not swapped");
  }
  refuseChannelsLast(images, options.images);
  std::vector<std::int64_t> classes(images.dimensions[0]);
  if (!options.labels.empty()) {
    const IdxFile labels = readIdx(options.labels, "labels", {1});
    if (images.dimensions[0] != labels.dimensions[0]) {
      throwDamaged(options.images,
                   "contains " + std::to_string(images.dimensions[0]) + " images, but " +
                       options.labels + " contains " + std::to_string(labels.dimensions[0]) +
                       " labels",
                   "give images and labels of the same samples");
    }
    classes = readLabels(labels, options);
  }
  const bool areImages = images.type->code == kUnsignedByte && images.dimensions.size() >= 3;
  if (!areImages)
    return std::make_unique<IdxValues>(std::move(images), std::move(classes), options);
  ImageStore store;
  if (images.dimensions.size() == 3) store.shape.push_back(1);  // grey: one channel
  store.shape.insert(store.shape.end(), images.dimensions.begin() + 1, images.dimensions.end());
  store.stride = (images.bytes.size() - images.start) / images.dimensions[0];
  store.first = images.start;
  store.bytes = std::move(images.bytes);
  for (const std::int64_t each : classes) store.labels.push_back(static_cast<std::uint32_t>(each));
  store.classes = options.classes;
  return makeImages(std::move(store), options.image);
}

}  // namespace cleave
