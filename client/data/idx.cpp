// IDX, the format of MNIST and similar datasets (http://yann.lecun.com/exdb/mnist): two zero bytes,
// the element type, the rank, each dimension as a big-endian 32-bit number, then the elements.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/data/images.h"
#include "client/data/unpack.h"

namespace cleave {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;

struct IdxFile {
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

// The file size that the header implies. Dimensions are not 0; their product is checked against the
// limit before it is used.
std::size_t fileBytes(const IdxFile& file, const std::string& path, const std::string& what) {
  std::size_t elements = 1;
  for (const std::uint32_t dimension : file.dimensions) {
    if (elements > kMaxDataBytes / dimension) {
      throwDamaged(path, "declares " + describe(file.dimensions, what) + ", more than 4 GiB");
    }
    elements *= dimension;
  }
  return file.start + elements;
}

// The hint for a file of `what` with this wrong rank.
const char* rankFix(int rank, const std::string& what) {
  const bool isOtherFile = what == "images" ? rank == 1 : rank >= 3;
  if (isOtherFile) return "check that the paths of images and labels are not swapped";
  return what == "images" ? "write the images as count x height x width, or count x channels x "
                            "height x width, for example 28 x 28 instead of a row of 784 values"
                          : "write one class number per sample, not one value per class";
}

void checkHeader(const std::vector<std::uint8_t>& bytes, const std::string& path,
                 const std::string& what, const std::vector<int>& ranks) {
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) {
    throwDamaged(path, "is not an IDX file: it does not start with two zero bytes and a type",
                 "give an IDX file, plain or gzip");
  }
  if (bytes[2] != kUnsignedByte) {
    throwDamaged(path,
                 "contains IDX elements of type " + std::to_string(bytes[2]) +
                     ", but only unsigned bytes (type 8) are supported",
                 "convert the file to unsigned bytes");
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
  file.bytes = readUnpacked(path, kMaxDataBytes);
  checkHeader(file.bytes, path, what, ranks);
  for (int d = 0; d < file.bytes[3]; ++d) {
    file.dimensions.push_back(
        bigEndian(file.bytes.data() + 4 + std::size_t{4} * static_cast<std::size_t>(d)));
  }
  file.start = 4 + 4 * file.dimensions.size();

  if (file.dimensions[0] == 0) {
    throw UsageError("data-empty", path + " contains no " + what, "download the file again");
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

void checkLabels(const IdxFile& labels, const std::string& path, int classes) {
  for (std::size_t j = labels.start; j < labels.bytes.size(); ++j) {
    const int label = labels.bytes[j];
    if (label < classes) continue;
    throwDamaged(path,
                 "gives sample " + std::to_string(j - labels.start) + " the label " +
                     std::to_string(label) + ", but with " + std::to_string(classes) +
                     " classes the maximum is " + std::to_string(classes - 1),
                 "check the number of classes in the configuration");
  }
}

}  // namespace

std::unique_ptr<LabeledDataset> openIdx(const IdxOptions& options) {
  IdxFile images = readIdx(options.images, "images", {3, 4});
  refuseChannelsLast(images, options.images);
  IdxFile labels = readIdx(options.labels, "labels", {1});
  if (images.dimensions[0] != labels.dimensions[0]) {
    throwDamaged(options.images,
                 "contains " + std::to_string(images.dimensions[0]) + " images, but " +
                     options.labels + " contains " + std::to_string(labels.dimensions[0]) +
                     " labels",
                 "give images and labels of the same samples");
  }
  checkLabels(labels, options.labels, options.classes);
  ImageStore store;
  if (images.dimensions.size() == 3) store.shape.push_back(1);  // grey: one channel
  store.shape.insert(store.shape.end(), images.dimensions.begin() + 1, images.dimensions.end());
  store.stride = (images.bytes.size() - images.start) / images.dimensions[0];
  store.first = images.start;
  store.bytes = std::move(images.bytes);
  store.labels.assign(labels.bytes.begin() + static_cast<std::ptrdiff_t>(labels.start),
                      labels.bytes.end());
  store.classes = options.classes;
  return makeImages(std::move(store), options.image);
}

}  // namespace cleave
