#include "client/data/formats/encoded_images.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <numeric>
#include <utility>

#include "client/data/pictures/image_file.h"
#include "client/data/samples/data_digest.h"
#include "client/data/samples/inspect.h"
#include "client/data/samples/subset.h"
#include "client/data/samples/transforms.h"
#include "common/core/log.h"
#include "common/core/names.h"
#include "common/core/open_file.h"
#include "common/core/printable.h"
#include "common/core/random.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxImageFileBytes = std::size_t{1} << 30;

// 0 if there is no such file.
std::uint64_t fileSize(const std::string& path) {
  std::error_code missing;
  const std::uintmax_t bytes = std::filesystem::file_size(path, missing);
  return missing ? 0 : bytes;
}

// ---- The dataset ----

class EncodedImageSet final : public LabeledDataset {
 public:
  EncodedImageSet(EncodedImages images, const DataFormatKeys& keys)
      : images_(std::move(images)),
        channels_(keys.channels),
        transforms_(imageOf(keys), keys.channels) {
    if (!images_.read) {
      images_.read = [this](std::uint32_t index) { return readImageFile(images_.names[index]); };
      images_.size = [this](std::uint32_t index) { return fileSize(images_.names[index]); };
      images_.readPart = [this](std::uint32_t index, ContentPart part) {
        return readFilePart(images_.names[index], part);
      };
    }
    first_ = firstHeader();
    shape_ = transforms_.outputShape(first_.height, first_.width);
    if (!transforms_.hasFixedShape()) compareSomeSizes();
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(images_.names.size()); }
  std::vector<std::int64_t> sampleShape() const override { return shape_; }
  int classes() const override { return static_cast<int>(images_.classNames.size()); }
  std::vector<std::string> classNames() const override { return images_.classNames; }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return images_.labels[index];
  }
  std::string sampleName(std::uint32_t index) const override {
    constexpr std::size_t kMaxBytes = 4096;  // length of a path
    return printable(images_.names[index], kMaxBytes);
  }
  // Opening all files would take minutes in large sets.
  void identify(std::uint32_t index, Sha256& digest) const override {
    std::string_view name = images_.names[index];
    if (name.starts_with(images_.folder)) name.remove_prefix(images_.folder.size());
    addText(digest, name.substr(std::min(name.find_first_not_of('/'), name.size())));
    addValue(digest, images_.labels[index]);
    addValue(digest, images_.size(index));
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    for (const ContentPart& part : contentParts(images_.size(index)))
      digest.add(images_.readPart(index, part));
  }
  nlohmann::json learned() const override { return learnedClasses(images_.classNames); }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    return decode(index, std::nullopt, out);
  }
  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    return decode(index, epoch, out);
  }

 private:
  // The header of the first image whose header is readable.
  ImageHeader firstHeader() const {
    std::exception_ptr firstError;
    for (std::uint32_t index = 0; index < size(); ++index) {
      try {
        return readImageHeader(images_.read(index), sampleName(index));
      } catch (const UsageError&) {
        if (!firstError) firstError = std::current_exception();
      }
    }
    std::rethrow_exception(firstError);
  }

  // Images of different sizes without data.resize are a common mistake, which should be found
  // before a run starts. Damaged images are found when they are read.
  void compareSomeSizes() const {
    constexpr std::uint32_t kCompared = 64;
    for (const std::uint32_t index : spreadIndices(size(), kCompared)) {
      ImageHeader header;
      try {
        header = readImageHeader(images_.read(index), sampleName(index));
      } catch (const UsageError&) {
        continue;
      }
      checkSize(index, header);
    }
  }

  void checkSize(std::uint32_t index, const ImageHeader& image) const {
    if (image.height == first_.height && image.width == first_.width) return;
    throwDifferentSizes(
        fmt::format("{} has {} x {} pixels, but another image of the data has {} x {}",
                    sampleName(index), image.width, image.height, first_.width, first_.height));
  }

  std::int64_t decode(std::uint32_t index, std::optional<std::uint64_t> epoch,
                      std::span<float> out) const {
    assert(index < size());
    const Pixels image = decodeImage(images_.read(index), channels_, sampleName(index));
    if (!transforms_.hasFixedShape()) checkSize(index, {image.height, image.width});
    transforms_.apply(image, index, epoch, out);
    return images_.labels[index];
  }

  EncodedImages images_;
  std::int64_t channels_;
  ImageTransforms transforms_;
  ImageHeader first_;
  std::vector<std::int64_t> shape_;
};

// ---- Classes ----

// "a, b, c and 4 more"
std::string listText(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t n = 0; n < std::min(names.size(), kShown); ++n) {
    text += (n == 0 ? "" : ", ") + names[n];
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

void checkClassName(const std::string& name, const std::string& where) {
  if (!name.empty() && printable(name) == name) return;
  throw DataError("data-damaged",
                  name.empty() ? where + " has an empty label"
                               : fmt::format("the class {} of {} has characters that cannot be "
                                             "printed",
                                             printable(name), where),
                  "use printable UTF-8 characters in names of classes");
}

[[noreturn]] void throwUnknownClasses(const std::vector<std::string>& unknown,
                                      const std::vector<std::string>& known,
                                      const std::string& where) {
  const std::string nearest = nearestName(unknown.front(), known);
  throw DataError(
      "unknown-class",
      fmt::format("{} has {} that the training set lacks: {}", where,
                  unknown.size() == 1 ? "a class" : "classes", listText(unknown)),
      nearest.empty()
          ? "remove their samples, or give them the training set's classes: " + listText(known)
          : fmt::format("rename {} to {}, or remove its samples", unknown.front(), nearest));
}

// ---- Files ----

using FolderId = std::pair<dev_t, ino_t>;

FolderId idOf(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    throw std::filesystem::filesystem_error("stat", folder,
                                            std::error_code(errno, std::generic_category()));
  }
  return {status.st_dev, status.st_ino};
}

// `above`: this folder's ancestors. A symbolic link to an ancestor is not followed.
void collectImages(const std::filesystem::path& folder, const std::string& below,
                   std::vector<FolderId>& above, FoundImages& found) {
  std::vector<std::string> files, folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    (entry.is_directory(ignored) ? folders : files).push_back(name);
  }
  std::sort(files.begin(), files.end());
  for (const std::string& name : files) {
    if (hasImageExtension(name)) {
      found.paths.push_back(below + name);
    } else {
      found.skipped.add(name);
    }
  }
  above.push_back(idOf(folder));
  std::sort(folders.begin(), folders.end());
  for (const std::string& name : folders) {
    if (std::find(above.begin(), above.end(), idOf(folder / name)) != above.end()) continue;
    collectImages(folder / name, below + name + "/", above, found);
  }
  above.pop_back();
}

// Refuses a table, for example, before anything is written.
void checkIsImage(const std::string& input) {
  const std::vector<std::byte> bytes = readImageFile(input);
  try {
    readImageHeader(bytes, input);
  } catch (const UsageError& error) {
    throw DataError("data-damaged", error.what(),
                    "the model takes images: give JPEG, PNG or WebP files, or folders of them");
  }
}

}  // namespace

void addEncodedImageKeys(DataFormatTable& table) {
  table.add("data.channels", "`1`, `3`", "", "`3`",
            "3 for RGB, 1 for grey; images of the other kind are converted",
            [](Config& config, DataFormatKeys& keys) {
              keys.channels = static_cast<int>(config.integer("data.channels", 1, 3, 3));
              if (keys.channels != 2) return;
              throw UsageError(
                  "config-value",
                  config.where("data.channels") + ": data.channels is 2, but must be 1 or 3",
                  "set it to 3 for colour images, or to 1 for grey ones");
            });
  addImageKeys(table);
}

ClassTable tabulateClasses(const std::set<std::string>& labels, const DataFormatKeys& keys,
                           DataSplit split, const std::string& where) {
  for (const std::string& label : labels) checkClassName(label, where);
  ClassTable table;
  table.names = split == DataSplit::train ? std::vector<std::string>(labels.begin(), labels.end())
                                          : classNamesOf(keys);
  if (table.names.size() < 2) {
    throw DataError("too-few-classes",
                    fmt::format("{} has a single class, {}, so there is nothing to distinguish",
                                where, listText(table.names)),
                    "add samples of at least one other class");
  }
  std::map<std::string, std::uint32_t, std::less<>> known;
  for (std::uint32_t c = 0; c < table.names.size(); ++c) known[table.names[c]] = c;
  std::vector<std::string> unknown;
  for (const std::string& label : labels) {
    const auto found = known.find(label);
    if (found == known.end()) {
      unknown.push_back(label);
    } else {
      table.numbers[label] = found->second;
    }
  }
  if (!unknown.empty()) throwUnknownClasses(unknown, table.names, where);
  return table;
}

nlohmann::json learnedClasses(const std::vector<std::string>& names) {
  return {{"classes", names}};
}

std::vector<std::string> classNamesOf(const DataFormatKeys& keys) {
  try {
    return keys.learned.at("classes").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw DataError("data-damaged", "the classes of the training set are not recorded",
                    "use a run with the same data.format");
  }
}

Labels labelsOf(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::train) return Labels(std::nullopt);
  std::vector<std::string> names = classNamesOf(keys);
  const int count = static_cast<int>(names.size());
  return Labels(ClassList{count, std::move(names)});
}

void useLabels(EncodedImages& images, Labels& labels, const std::string& where) {
  labels.finish(where);
  images.classNames = labels.classes().texts();
  images.labels.assign(labels.values().begin(), labels.values().end());
}

std::unique_ptr<Dataset> makeEncodedImages(EncodedImages images, const DataFormatKeys& keys) {
  assert(!images.names.empty() && images.labels.size() == images.names.size());
  return std::make_unique<EncodedImageSet>(std::move(images), keys);
}

std::vector<std::byte> readImageFile(const std::string& path) {
  const auto fail = [&] {
    throwDamagedImage(path, std::string("cannot be read: ") + std::strerror(errno));
  };
  // Without O_NONBLOCK, a pipe without a writer would block.
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) throwDamagedImage(path, "is not a regular file");
  if (static_cast<std::uint64_t>(status.st_size) > kMaxImageFileBytes) {
    throwDamagedImage(path, "is larger than 1 GiB");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + taken, bytes.size() - taken);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail();
    if (got == 0) break;  // the file has shrunk
    taken += static_cast<std::size_t>(got);
  }
  bytes.resize(taken);
  return bytes;
}

std::vector<std::byte> readFilePart(const std::string& path, ContentPart part) {
  std::vector<std::byte> bytes(part.bytes);
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t got =
      file ? ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(part.offset)) : 0;
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

bool hasImageExtension(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string extension(path.substr(dot + 1));
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == "jpg" || extension == "jpeg" || extension == "png" || extension == "webp";
}

FoundImages findImages(const std::string& folder) {
  FoundImages found;
  try {
    std::vector<FolderId> above;
    collectImages(folder, "", above, found);
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataMissing(error.path1().string() + " cannot be read: " + error.code().message(),
                      "check the path of the data in the configuration");
  }
  return found;
}

void warnOfSkipped(const std::string& where, const SkippedFiles& skipped,
                   const std::string& folder) {
  if (skipped.isEmpty()) return;
  processLog()->warn("{}: skipping {}: only .jpg, .jpeg, .png and .webp files are read{}", where,
                     skipped.text(),
                     skipped.hasPictures() ? "; " + skipped.hint(folder) : std::string());
}

std::unique_ptr<Dataset> openInputImages(const DataFormatKeys& keys) {
  EncodedImages images;
  images.classNames = classNamesOf(keys);
  for (const std::string& input : keys.inputs) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(input, ignored)) {
      if (!hasImageExtension(input)) checkIsImage(input);
      images.names.push_back(input);
      continue;
    }
    const std::filesystem::path folder(input);
    const FoundImages found = findImages(input);
    for (const std::string& path : found.paths) images.names.push_back(folder / path);
    warnOfSkipped(input, found.skipped, input);
  }
  if (images.names.empty()) {
    throw DataError("data-empty", listText(keys.inputs) + " has no images",
                    "give JPEG, PNG or WebP files, or folders of them");
  }
  images.labels.resize(images.names.size());
  return makeEncodedImages(std::move(images), keys);
}

void throwNoTestSet(const std::string& key) {
  throw UsageError("config-missing", key + " is missing, so there is no test set",
                   "set " + key +
                       ", or data.holdout to the number of training samples to "
                       "evaluate on");
}

void shuffleForHoldout(EncodedImages& images) {
  const auto count = static_cast<std::uint32_t>(images.names.size());
  const std::vector<std::uint32_t> order = holdoutOrder(count);
  EncodedImages shuffled;
  shuffled.classNames = std::move(images.classNames);
  shuffled.folder = std::move(images.folder);
  for (const std::uint32_t from : order) {
    shuffled.names.push_back(std::move(images.names[from]));
    shuffled.labels.push_back(images.labels[from]);
  }
  if (images.read) {
    shuffled.read = [read = std::move(images.read), order](std::uint32_t index) {
      return read(order[index]);
    };
    shuffled.size = [size = std::move(images.size), order](std::uint32_t index) {
      return size(order[index]);
    };
    shuffled.readPart = [readPart = std::move(images.readPart), order](std::uint32_t index,
                                                                       ContentPart part) {
      return readPart(order[index], part);
    };
  }
  images = std::move(shuffled);
}

}  // namespace cleave
