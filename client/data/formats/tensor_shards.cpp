#include "client/data/formats/tensor_shards.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "client/data/files/npy.h"
#include "common/codec/safetensors.h"
#include "common/core/open_file.h"
#include "common/files/file_kind.h"

namespace cleave {
namespace {

[[noreturn]] void throwUnreadable(const std::string& path) {
  throw DataMissing(path + " cannot be read: " + std::strerror(errno),
                    "check the path of the data in the configuration");
}

// `in` names the array in messages.
StoredArray storedArray(const std::string& name, const StoredDType& dtype,
                        const std::vector<std::int64_t>& shape, const std::byte* data,
                        const std::string& path, const std::string& in) {
  if (shape.empty()) throwDamagedTensors(path, in + " is a single number");
  StoredArray stored;
  stored.sample = {inAscii(name), dtype.as, {shape.begin() + 1, shape.end()}};
  stored.dtype = &dtype;
  stored.data = data;
  stored.elements = specOf(stored.sample, 1).elements();
  if (stored.elements == 0) throwDamagedTensors(path, in + " is empty");
  return stored;
}

const StoredDType& checkDType(const StoredDType* dtype, const std::string& path,
                              const std::string& fault) {
  if (dtype == nullptr) throwDamagedTensors(path, fault + ", which is not supported");
  return *dtype;
}

StoredArray storedArray(const SafetensorsEntry& entry, const std::string& path) {
  const std::string in = "its array " + inAscii(entry.name);
  const StoredDType& dtype =
      checkDType(dtypeOfSafetensors(entry.dtype), path, in + " is " + entry.dtype);
  return storedArray(entry.name, dtype, entry.shape, entry.bytes.data(), path, in);
}

void addArray(Shard& shard, StoredArray array, std::int64_t samples, const std::string& path) {
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 31;
  if (samples > kMaxSamples) throwDamagedTensors(path, "it has more than 2^31 samples");
  if (!shard.arrays.empty() && samples != shard.samples) {
    throwDamagedTensors(path, "its arrays have " + std::to_string(shard.samples) + " and " +
                                  std::to_string(samples) + " samples");
  }
  shard.samples = static_cast<std::uint32_t>(samples);
  shard.arrays.push_back(std::move(array));
}

Shard finished(Shard shard, const std::string& path) {
  if (shard.samples == 0) throwDamagedTensors(path, "it has no samples");
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
    const StoredDType& dtype =
        checkDType(dtypeOfNpy(array.dtype), path, "its elements are " + array.dtype);
    const std::string name = std::filesystem::path(path).stem().string();
    StoredArray stored =
        storedArray(name, dtype, array.shape, array.bytes.data(), path, "its array");
    addArray(shard, std::move(stored), array.shape.front(), path);
  }
  return finished(std::move(shard), folder);
}

// Throws if the file is known to be of another format, whatever its name.
void refuseOtherFormat(std::span<const std::byte> bytes, const std::string& path) {
  const FileKind kind = fileKindOf({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (kind == FileKind::unknown || kind == FileKind::safetensors) return;
  std::string hint = "write its arrays in Python with cleave_split.save_dataset";
  if (kind == FileKind::zip || kind == FileKind::pickle) {
    hint =
        "convert it, which does not execute the pickle: pip install ./python && "
        "python3 -m cleave_split.convert " +
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
                      "give a safetensors file, as cleave_split.save_dataset writes it");
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

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) throwUnreadable(path);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory_ == MAP_FAILED) throwUnreadable(path);
}

MappedFile::~MappedFile() {
  if (memory_ != nullptr) ::munmap(memory_, size_);
}

std::vector<Shard> openShards(const std::string& path, const DamageReport& report) {
  std::vector<Shard> shards;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    shards.push_back(openShard(path));
    return shards;
  }
  const std::vector<std::string> files = filesIn(path, ".safetensors", error);
  const std::vector<std::string> arrays = filesIn(path, ".npy", error);
  if (!files.empty() && !arrays.empty())
    throwDamagedTensors(path, "the folder has both .safetensors and .npy files");
  if (files.empty() && arrays.empty()) {
    throw DataMissing(path + (error ? " cannot be read: " + error.message()
                                    : std::string(" has no .safetensors or .npy files")),
                      "write safetensors files with cleave_split.save_dataset, or each array with "
                      "numpy.save");
  }
  if (!arrays.empty()) shards.push_back(openNpyFolder(path, arrays));
  std::string first;  // the file of the first shard
  for (const std::string& file : files) {
    orReport(report, file, [&] {
      Shard shard = openShard(file);
      if (shards.empty()) first = file;
      if (!shards.empty() && !haveSameArrays(shards.front(), shard))
        throwDamagedTensors(file, "its arrays differ from those of " + first);
      shards.push_back(std::move(shard));
    });
  }
  if (shards.empty())
    throw DataError("data-empty", path + " has no readable file", "write the files again");
  return shards;
}

void throwDamagedTensors(const std::string& path, const std::string& fault) {
  throw DataError("data-damaged", path + ": " + fault,
                  "write the file again with cleave_split.save_dataset");
}

}  // namespace cleave
