// The data format `tensors`: named arrays in safetensors or .npy files, which are mapped into
// memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "client/data/dataset.h"
#include "client/data/npy.h"
#include "common/core/file_kind.h"
#include "common/core/open_file.h"
#include "common/model/safetensors.h"

namespace cleave {
namespace {

// A memory-mapped file. If another process truncates the file meanwhile, reading kills this process
// (SIGBUS).
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0) fail(path);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;
    memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory_ == MAP_FAILED) fail(path);
  }
  MappedFile(MappedFile&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
  }

  std::span<const std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  [[noreturn]] static void fail(const std::string& path) {
    throw UsageError("data-missing", path + " cannot be read: " + std::strerror(errno),
                     "check the path of the data in the configuration");
  }

  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

// A dtype of stored arrays, and how its elements are read.
struct DTypeRow {
  std::string_view name;   // its name in safetensors files
  std::string_view numpy;  // its name in .npy files
  std::size_t bytes;
  DType as;
  void (*convert)(const std::byte* from, std::size_t count, std::byte* to);
};

template <typename From, typename To>
void convert(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t n = 0; n < count; ++n) {
    From value;
    std::memcpy(&value, from + n * sizeof value, sizeof value);
    // Signed one-byte numbers keep their sign.
    const To converted = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse)
    std::memcpy(to + n * sizeof converted, &converted, sizeof converted);
  }
}

// IEEE half precision.
float floatOfHalf(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t exponent = half >> 10 & 0x1FU, fraction = half & 0x3FFU;
  if (exponent == 0) {  // zero and subnormal numbers: multiples of 2^-24
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

void convertHalf(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t n = 0; n < count; ++n) {
    std::uint16_t half = 0;
    std::memcpy(&half, from + n * sizeof half, sizeof half);
    const float value = floatOfHalf(half);
    std::memcpy(to + n * sizeof value, &value, sizeof value);
  }
}

constexpr std::array<DTypeRow, 9> kDTypes = {
    {{"F32", "f4", 4, DType::f32, convert<float, float>},
     {"F64", "f8", 8, DType::f32, convert<double, float>},
     {"F16", "f2", 2, DType::f32, convertHalf},
     {"I64", "i8", 8, DType::i64, convert<std::int64_t, std::int64_t>},
     {"I32", "i4", 4, DType::i64, convert<std::int32_t, std::int64_t>},
     {"I16", "i2", 2, DType::i64, convert<std::int16_t, std::int64_t>},
     {"I8", "i1", 1, DType::i64, convert<std::int8_t, std::int64_t>},
     {"U8", "u1", 1, DType::i64, convert<std::uint8_t, std::int64_t>},
     {"BOOL", "b1", 1, DType::i64, convert<std::uint8_t, std::int64_t>}}};

[[noreturn]] void damaged(const std::string& path, const std::string& fault) {
  throw DataError("data-damaged", path + ": " + fault,
                  "write the file again with cleave.save_dataset");
}

// An array in one file.
struct StoredArray {
  SampleArray sample;
  const DTypeRow* dtype = nullptr;
  const std::byte* data = nullptr;
  std::size_t elements = 0;  // per sample
};

struct Shard {
  std::vector<MappedFile> files;
  std::uint32_t samples = 0;
  std::vector<StoredArray> arrays;  // in the order of their names
};

// `in` names the array in messages.
StoredArray storedArray(const std::string& name, const DTypeRow& dtype,
                        const std::vector<std::int64_t>& shape, const std::byte* data,
                        const std::string& path, const std::string& in) {
  if (shape.empty()) damaged(path, in + " is a single number");
  StoredArray stored;
  stored.sample = {inAscii(name), dtype.as, {shape.begin() + 1, shape.end()}};
  stored.dtype = &dtype;
  stored.data = data;
  stored.elements = specOf(stored.sample, 1).elements();
  if (stored.elements == 0) damaged(path, in + " is empty");
  return stored;
}

template <typename Matches>
const DTypeRow& findDType(const Matches& matches, const std::string& path,
                          const std::string& fault) {
  const auto row = std::find_if(kDTypes.begin(), kDTypes.end(), matches);
  if (row == kDTypes.end()) damaged(path, fault + ", which is not supported");
  return *row;
}

StoredArray storedArray(const SafetensorsEntry& entry, const std::string& path) {
  const std::string in = "its array " + inAscii(entry.name);
  const DTypeRow& row = findDType([&](const DTypeRow& known) { return known.name == entry.dtype; },
                                  path, in + " is " + entry.dtype);
  return storedArray(entry.name, row, entry.shape, entry.bytes.data(), path, in);
}

void addArray(Shard& shard, StoredArray array, std::int64_t samples, const std::string& path) {
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 31;
  if (samples > kMaxSamples) damaged(path, "it has more than 2^31 samples");
  if (!shard.arrays.empty() && samples != shard.samples) {
    damaged(path, "its arrays have " + std::to_string(shard.samples) + " and " +
                      std::to_string(samples) + " samples");
  }
  shard.samples = static_cast<std::uint32_t>(samples);
  shard.arrays.push_back(std::move(array));
}

Shard finished(Shard shard, const std::string& path) {
  if (shard.samples == 0) damaged(path, "it has no samples");
  std::sort(shard.arrays.begin(), shard.arrays.end(),
            [](const auto& a, const auto& b) { return a.sample.name < b.sample.name; });
  return shard;
}

// A folder with NAME.npy for each array.
Shard openNpyFolder(const std::string& folder, const std::vector<std::string>& paths) {
  Shard shard;
  for (const std::string& path : paths) {
    shard.files.emplace_back(path);
    const NpyArray array = readNpy(shard.files.back().bytes(), path);
    const DTypeRow& row =
        findDType([&](const DTypeRow& known) { return known.numpy == array.dtype; }, path,
                  "its elements are " + array.dtype);
    const std::string name = std::filesystem::path(path).stem().string();
    StoredArray stored = storedArray(name, row, array.shape, array.bytes.data(), path, "its array");
    addArray(shard, std::move(stored), array.shape.front(), path);
  }
  return finished(std::move(shard), folder);
}

// Throws if the file is known to be of another format, whatever its name.
void refuseOtherFormat(std::span<const std::byte> bytes, const std::string& path) {
  const FileKind kind = fileKindOf({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (kind == FileKind::unknown || kind == FileKind::safetensors) return;
  std::string hint = "write its arrays in Python with cleave.save_dataset";
  if (kind == FileKind::zip || kind == FileKind::pickle) {
    hint =
        "convert it, which does not execute the pickle: pip install ./python && "
        "python3 -m cleave.convert " +
        path + " NEW.safetensors";
  } else if (kind == FileKind::npy) {
    hint = "give it the extension .npy, and set the key to its folder";
  }
  throw DataError("data-damaged",
                  path + ": it is " + std::string(nameOf(kind)) + ", not a safetensors file", hint);
}

Shard openShard(const std::string& path) {
  Shard shard;
  shard.files.emplace_back(path);
  refuseOtherFormat(shard.files.front().bytes(), path);
  const auto entries = [&] {
    try {
      return readSafetensors(shard.files.front().bytes(), path);
    } catch (const UsageError& error) {
      throw DataError("data-damaged", error.what(),
                      "give a safetensors file, as cleave.save_dataset writes it");
    }
  }();
  for (const SafetensorsEntry& entry : entries) {
    StoredArray stored = storedArray(entry, path);
    addArray(shard, std::move(stored), entry.shape.front(), path);
  }
  return finished(std::move(shard), path);
}

// Lists the files of a folder with this extension, in the order of their names.
std::vector<std::string> filesIn(const std::string& folder, std::string_view extension,
                                 std::error_code& error) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == extension) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool haveSameArrays(const Shard& a, const Shard& b) {
  return std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end(),
                    [](const auto& one, const auto& other) { return one.sample == other.sample; });
}

std::vector<Shard> openShards(const std::string& path) {
  std::vector<Shard> shards;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    shards.push_back(openShard(path));
    return shards;
  }
  const std::vector<std::string> files = filesIn(path, ".safetensors", error);
  const std::vector<std::string> arrays = filesIn(path, ".npy", error);
  if (!files.empty() && !arrays.empty())
    damaged(path, "the folder has both .safetensors and .npy files");
  if (files.empty() && arrays.empty()) {
    throw UsageError("data-missing",
                     path + (error ? " cannot be read: " + error.message()
                                   : std::string(" has no .safetensors or .npy files")),
                     "write safetensors files with cleave.save_dataset, or each array with "
                     "numpy.save");
  }
  if (!arrays.empty()) shards.push_back(openNpyFolder(path, arrays));
  for (const std::string& file : files) {
    shards.push_back(openShard(file));
    if (!haveSameArrays(shards.front(), shards.back()))
      damaged(file, "its arrays differ from those of " + files.front());
  }
  return shards;
}

class Tensors final : public Dataset {
 public:
  explicit Tensors(const TensorsOptions& options) : knownClasses_(options.classes) {
    std::uint64_t size = 0;
    shards_ = openShards(options.file);
    for (const Shard& shard : shards_) {
      size += shard.samples;
      if (size > 0xFFFFFFFF) damaged(options.file, "there are more than 2^32 samples");
      ends_.push_back(static_cast<std::uint32_t>(size));
    }
    choose(options);
  }

  std::uint32_t size() const override { return ends_.back(); }
  int classes() const override {
    const SampleArray target = arrays().back();
    return target.dtype == DType::i64 && target.shape.empty() ? knownClasses_ : 0;
  }

  std::vector<SampleArray> arrays() const override {
    std::vector<SampleArray> arrays;
    for (const std::size_t a : chosen_) arrays.push_back(shards_.front().arrays[a].sample);
    if (zeros_) arrays.push_back(*zeros_);
    return arrays;
  }
  nlohmann::json learned() const override {
    const SampleArray target = arrays().back();
    return {{"target", {{"is_class", target.dtype == DType::i64}, {"shape", target.shape}}}};
  }

  std::optional<std::int64_t> label(std::uint32_t index) const override {
    if (zeros_) return std::nullopt;
    const SampleArray& target = shards_.front().arrays[chosen_.back()].sample;
    if (target.dtype != DType::i64 || !target.shape.empty()) return std::nullopt;
    std::int64_t label = 0;
    copyArray(chosen_.back(), index, reinterpret_cast<std::byte*>(&label));
    return label;
  }

  // A target that is an array may have as many values as the inputs.
  void identify(std::uint32_t index, Sha256& digest) const override {
    if (zeros_ || !arrays().back().shape.empty()) return;
    std::int64_t target = 0;
    copyArray(chosen_.back(), index, reinterpret_cast<std::byte*>(&target));
    addValue(digest, target);
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    for (std::size_t n = 0; n < chosen_.size(); ++n) copyArray(chosen_[n], index, out[n].data());
    if (zeros_) std::fill(out.back().begin(), out.back().end(), std::byte{0});
  }

 private:
  void copyArray(std::size_t a, std::uint32_t index, std::byte* out) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    assert(end != ends_.end());
    const Shard& shard = shards_[static_cast<std::size_t>(end - ends_.begin())];
    const std::size_t sample = index - (*end - shard.samples);
    const StoredArray& array = shard.arrays[a];
    array.dtype->convert(array.data + sample * array.elements * array.dtype->bytes, array.elements,
                         out);
  }

  // Chooses the inputs, then the target. All arrays except the target are inputs; if the target is
  // the only array, it is the input too.
  void choose(const TensorsOptions& options) {
    const std::vector<StoredArray>& arrays = shards_.front().arrays;
    std::optional<std::size_t> target;
    std::string names;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      names += (a == 0 ? "" : ", ") + arrays[a].sample.name;
      if (arrays[a].sample.name == options.target) {
        target = a;
      } else {
        chosen_.push_back(a);
      }
    }
    if (!target && options.learned.contains("target")) {
      const nlohmann::json& known = options.learned.at("target");
      zeros_ = SampleArray{options.target, known.at("is_class") ? DType::i64 : DType::f32,
                           known.at("shape")};
      return;
    }
    if (!target) {
      throw UsageError("no-target",
                       options.file + " has no array " + inAscii(options.target) +
                           " to compare the output with, only " + names,
                       "set data.target to one of them");
    }
    if (chosen_.empty()) chosen_.push_back(*target);
    chosen_.push_back(*target);
  }

  const int knownClasses_;
  std::vector<Shard> shards_;
  std::vector<std::uint32_t> ends_;   // per shard: number of samples up to and including it
  std::vector<std::size_t> chosen_;   // positions of the inputs and the target in Shard::arrays
  std::optional<SampleArray> zeros_;  // the target, if the file has none
};

// A view of another dataset with some of its arrays as inputs, and the same target.
class Selection final : public Dataset {
 public:
  Selection(std::shared_ptr<const Dataset> data, std::vector<std::size_t> chosen)
      : data_(std::move(data)), all_(data_->arrays()), chosen_(std::move(chosen)) {}

  std::uint32_t size() const override { return data_->size(); }
  int classes() const override { return data_->classes(); }
  std::vector<std::string> classNames() const override { return data_->classNames(); }
  std::string sampleName(std::uint32_t index) const override { return data_->sampleName(index); }
  void identify(std::uint32_t index, Sha256& digest) const override {
    data_->identify(index, digest);
  }
  nlohmann::json learned() const override { return data_->learned(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return data_->label(index);
  }

  std::vector<SampleArray> arrays() const override {
    std::vector<SampleArray> arrays;
    for (const std::size_t a : chosen_) arrays.push_back(all_[a]);
    return arrays;
  }

  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::span<std::byte>> sample;
    for (const SampleArray& array : all_)
      sample.emplace_back(memory.emplace_back(specOf(array, 1).bytes()));
    data_->write(index, epoch, sample);
    for (std::size_t n = 0; n < chosen_.size(); ++n) {
      std::copy(sample[chosen_[n]].begin(), sample[chosen_[n]].end(), out[n].begin());
    }
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<SampleArray> all_;
  std::vector<std::size_t> chosen_;
};

}  // namespace

std::unique_ptr<Dataset> openTensors(const TensorsOptions& options) {
  return std::make_unique<Tensors>(options);
}

std::shared_ptr<const Dataset> selectInputs(std::shared_ptr<const Dataset> data,
                                            const std::vector<std::string>& names) {
  const std::vector<SampleArray> arrays = data->arrays();
  std::vector<std::size_t> chosen;
  std::string known;
  for (auto array = arrays.begin(); array != arrays.end(); ++array) {
    const bool isNew = std::none_of(
        arrays.begin(), array, [&](const SampleArray& each) { return each.name == array->name; });
    if (isNew) known += (known.empty() ? "" : ", ") + array->name;
  }
  for (const std::string& name : names) {
    const auto found = std::find_if(arrays.begin(), arrays.end(),
                                    [&](const SampleArray& each) { return each.name == name; });
    if (found == arrays.end()) {
      throw UsageError(
          "no-input",
          "the data has no array " + inAscii(name) +
              ", which is an input of the model; its arrays are " + known,
          "rename an array in the data, or export the model with inputs of these names");
    }
    chosen.push_back(static_cast<std::size_t>(found - arrays.begin()));
  }
  chosen.push_back(arrays.size() - 1);
  return std::make_shared<Selection>(std::move(data), std::move(chosen));
}

}  // namespace cleave
