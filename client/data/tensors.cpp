// The data format `tensors`: named arrays in safetensors files, which are mapped into memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "client/data/dataset.h"
#include "common/core/open_file.h"
#include "common/model/safetensors.h"

namespace cleave {
namespace {

// A file's content as memory. If the file is made shorter while it is mapped, reading ends the
// process.
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

// How the elements of a dtype are read.
struct DTypeRow {
  std::string_view name;
  std::size_t bytes;
  DType as;
  void (*convert)(const std::byte* from, std::size_t count, std::byte* to);
};

template <typename From, typename To>
void convert(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t n = 0; n < count; ++n) {
    From value;
    std::memcpy(&value, from + n * sizeof value, sizeof value);
    // Numbers of one byte keep their sign.
    const To converted = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse)
    std::memcpy(to + n * sizeof converted, &converted, sizeof converted);
  }
}

constexpr std::array<DTypeRow, 8> kDTypes = {
    {{"F32", 4, DType::f32, convert<float, float>},
     {"F64", 8, DType::f32, convert<double, float>},
     {"I64", 8, DType::i64, convert<std::int64_t, std::int64_t>},
     {"I32", 4, DType::i64, convert<std::int32_t, std::int64_t>},
     {"I16", 2, DType::i64, convert<std::int16_t, std::int64_t>},
     {"I8", 1, DType::i64, convert<std::int8_t, std::int64_t>},
     {"U8", 1, DType::i64, convert<std::uint8_t, std::int64_t>},
     {"BOOL", 1, DType::i64, convert<std::uint8_t, std::int64_t>}}};

[[noreturn]] void damaged(const std::string& path, const std::string& fault) {
  throw UsageError("data-damaged", path + ": " + fault,
                   "write the file again with cleave.save_dataset");
}

// An array of one file.
struct StoredArray {
  SampleArray sample;
  const DTypeRow* dtype = nullptr;
  const std::byte* data = nullptr;
  std::size_t elements = 0;  // per sample
};

struct Shard {
  MappedFile file;
  std::uint32_t samples = 0;
  std::vector<StoredArray> arrays;  // in the order of their names
};

StoredArray storedArray(const SafetensorsEntry& entry, const std::string& path) {
  const auto row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                [&](const DTypeRow& known) { return known.name == entry.dtype; });
  const std::string array = "its array " + inAscii(entry.name);
  if (row == kDTypes.end()) damaged(path, array + " is " + entry.dtype + ", which is not read");
  if (entry.shape.empty()) damaged(path, array + " is a single number");
  StoredArray stored;
  stored.sample = {inAscii(entry.name), row->as, {entry.shape.begin() + 1, entry.shape.end()}};
  stored.dtype = &*row;
  stored.data = entry.bytes.data();
  stored.elements = specOf(stored.sample, 1).elements();
  if (stored.elements == 0) damaged(path, array + " is empty");
  return stored;
}

Shard openShard(const std::string& path) {
  Shard shard{MappedFile(path), 0, {}};
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 31;
  std::int64_t samples = -1;
  const auto entries = [&] {
    try {
      return readSafetensors(shard.file.bytes(), path);
    } catch (const UsageError& error) {
      throw UsageError("data-damaged", error.what(),
                       "give a safetensors file, as cleave.save_dataset writes it");
    }
  }();
  for (const SafetensorsEntry& entry : entries) {
    shard.arrays.push_back(storedArray(entry, path));
    if (samples >= 0 && entry.shape[0] != samples) {
      damaged(path, "its arrays have " + std::to_string(samples) + " and " +
                        std::to_string(entry.shape[0]) + " samples");
    }
    samples = entry.shape[0];
  }
  if (samples <= 0) damaged(path, "it has no samples");
  if (samples > kMaxSamples) damaged(path, "it has more than 2^31 samples");
  shard.samples = static_cast<std::uint32_t>(samples);
  std::sort(shard.arrays.begin(), shard.arrays.end(),
            [](const auto& a, const auto& b) { return a.sample.name < b.sample.name; });
  return shard;
}

std::vector<std::string> filesOf(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {path};
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  if (files.empty()) {
    throw UsageError("data-missing",
                     path + (error ? " cannot be read: " + error.message()
                                   : std::string(" has no safetensors files")),
                     "write them with cleave.save_dataset");
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool haveSameArrays(const Shard& a, const Shard& b) {
  return std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end(),
                    [](const auto& one, const auto& other) { return one.sample == other.sample; });
}

class Tensors final : public Dataset {
 public:
  explicit Tensors(const TensorsOptions& options) {
    std::uint64_t size = 0;
    for (const std::string& path : filesOf(options.file)) {
      shards_.push_back(openShard(path));
      if (!haveSameArrays(shards_.front(), shards_.back())) {
        damaged(path, "its arrays are not those of " + filesOf(options.file).front());
      }
      size += shards_.back().samples;
      ends_.push_back(static_cast<std::uint32_t>(size));
      if (size > 0xFFFFFFFF) damaged(path, "with it, there are more than 2^32 samples");
    }
    choose(options);
  }

  std::uint32_t size() const override { return ends_.back(); }
  int classes() const override { return 0; }

  std::vector<SampleArray> arrays() const override {
    std::vector<SampleArray> arrays;
    for (const std::size_t a : chosen_) arrays.push_back(shards_.front().arrays[a].sample);
    return arrays;
  }

  std::optional<std::int64_t> label(std::uint32_t index) const override {
    const SampleArray& target = shards_.front().arrays[chosen_.back()].sample;
    if (target.dtype != DType::i64 || !target.shape.empty()) return std::nullopt;
    std::int64_t label = 0;
    copyArray(chosen_.back(), index, reinterpret_cast<std::byte*>(&label));
    return label;
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    for (std::size_t n = 0; n < chosen_.size(); ++n) copyArray(chosen_[n], index, out[n].data());
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

  // All arrays but the target, unless there is no other; then the target.
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
    if (!target) {
      throw UsageError("no-target",
                       options.file + " has no array " + inAscii(options.target) +
                           " to compare the output with, only " + names,
                       "set data.target to one of them");
    }
    if (chosen_.empty()) chosen_.push_back(*target);
    chosen_.push_back(*target);
  }

  std::vector<Shard> shards_;
  std::vector<std::uint32_t> ends_;  // per shard, the number of samples up to its end
  std::vector<std::size_t> chosen_;  // positions of the inputs and the target in Shard::arrays
};

// Other inputs of a dataset's samples, and the same target.
class Selection final : public Dataset {
 public:
  Selection(std::shared_ptr<const Dataset> data, std::vector<std::size_t> chosen)
      : data_(std::move(data)), all_(data_->arrays()), chosen_(std::move(chosen)) {}

  std::uint32_t size() const override { return data_->size(); }
  int classes() const override { return data_->classes(); }
  std::vector<std::string> classNames() const override { return data_->classNames(); }
  std::string sampleName(std::uint32_t index) const override { return data_->sampleName(index); }
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
      throw UsageError("no-input",
                       "the data has no array " + inAscii(name) +
                           ", which is an input of the model, only " + known,
                       "write the data with that name, or export the model with inputs of these");
    }
    chosen.push_back(static_cast<std::size_t>(found - arrays.begin()));
  }
  chosen.push_back(arrays.size() - 1);
  return std::make_shared<Selection>(std::move(data), std::move(chosen));
}

}  // namespace cleave
