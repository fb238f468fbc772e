// The binary versions of CIFAR-10 and CIFAR-100 (A. Krizhevsky, "Learning multiple layers of
// features from tiny images", 2009): records without a header.
//
//   CIFAR-10    label, pixels
//   CIFAR-100   coarse label, fine label, pixels
//
// A label is one byte. The pixels are 3072 bytes: the red, green and blue planes of 32 x 32, row by
// row.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/data/files/unpack.h"
#include "client/data/samples/images.h"

namespace cleave {
namespace {

constexpr std::size_t kPixels = std::size_t{3} * 32 * 32;

struct Layout {
  const char* name;
  const char* folder;  // created by unpacking the archive
  std::size_t labels;  // bytes per record
  std::size_t label;   // index of the label that is used
  int classes;
  std::vector<std::string> train, test;  // file names
};

Layout layoutOf(CifarKind kind) {
  if (kind == CifarKind::cifar10) {
    return {"CIFAR-10",
            "cifar-10-batches-bin",
            1,
            0,
            10,
            {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"},
            {"test_batch.bin"}};
  }
  const bool fine = kind == CifarKind::cifar100Fine;
  return {"CIFAR-100",     "cifar-100-binary", 2,           fine ? 1u : 0u,
          fine ? 100 : 20, {"train.bin"},      {"test.bin"}};
}

std::string archiveAdvice(const Layout& layout) {
  return std::string("unpack the binary version of ") + layout.name +
         " from the dataset's home page, and set data.folder to the folder " + layout.folder;
}

// Returns the file's path, or NAME.gz if only that exists.
std::string findFile(const std::string& folder, const std::string& name, const Layout& layout) {
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  const std::string packed = path.string() + ".gz";
  if (std::filesystem::exists(packed, ignored)) return packed;
  throw DataMissing(
      path.string() + " cannot be read: there is no such file, and no " + name + ".gz",
      archiveAdvice(layout));
}

// Throws, or reports each label that is not a class, which becomes 0.
void checkRecords(std::vector<std::uint8_t>& bytes, const std::string& path, const Layout& layout,
                  const DamageReport& report) {
  const std::size_t record = layout.labels + kPixels;
  if (bytes.empty()) {
    throw DataError("data-empty", path + " contains no images", "download the file again");
  }
  if (bytes.size() % record != 0) {
    throwDamaged(path,
                 std::string("is truncated, or not a ") + layout.name + " file: its " +
                     std::to_string(bytes.size()) + " bytes are not a whole number of records of " +
                     std::to_string(record) + " bytes",
                 "download the file again; " + archiveAdvice(layout));
  }
  for (std::size_t start = 0; start < bytes.size(); start += record) {
    std::uint8_t& label = bytes[start + layout.label];
    if (label < layout.classes) continue;
    orReport(report, path, [&] {
      throwDamaged(path,
                   std::string("is damaged, or not a ") + layout.name + " file: image " +
                       std::to_string(start / record) + " has the label " + std::to_string(label) +
                       ", but the largest label is " + std::to_string(layout.classes - 1),
                   "download the file again; " + archiveAdvice(layout));
    });
    label = 0;
  }
}

}  // namespace

std::unique_ptr<LabeledDataset> openCifar(const CifarOptions& options) {
  const Layout layout = layoutOf(options.kind);
  ImageStore store;
  store.first = layout.labels;
  store.stride = layout.labels + kPixels;
  store.shape = {3, 32, 32};
  store.classes = layout.classes;
  for (const std::string& name : options.train ? layout.train : layout.test) {
    const std::string path = findFile(options.folder, name, layout);
    orReport(options.report, path, [&] {
      std::vector<std::uint8_t> bytes =
          readUnpacked(path, kMaxDataBytes - store.bytes.size(), Needs::twice);
      checkRecords(bytes, path, layout, options.report);
      store.bytes.insert(store.bytes.end(), bytes.begin(), bytes.end());
    });
  }
  if (store.bytes.empty())
    throw DataError("data-empty", options.folder + " has no readable file", archiveAdvice(layout));
  for (std::size_t start = layout.label; start < store.bytes.size(); start += store.stride) {
    store.labels.push_back(store.bytes[start]);
  }
  return makeImages(std::move(store), options.image);
}

}  // namespace cleave
