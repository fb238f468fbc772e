// Opens safetensors and .npy files as named arrays. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/data/samples/stored_array.h"

namespace cleave {

// A memory-mapped file. If another process truncates the file meanwhile, reading kills this process
// (SIGBUS).
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws UsageError "data-missing"
  MappedFile(MappedFile&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

struct Shard {
  std::vector<MappedFile> files;
  std::uint32_t samples = 0;
  std::vector<StoredArray> arrays;  // in the order of their names
};
// A file, or a folder of them: see TensorsOptions::file. All shards have the same arrays. Throws
// UsageError. `report`: receives the damaged files of a folder, which are left out.
std::vector<Shard> openShards(const std::string& path, const DamageReport& report = nullptr);

[[noreturn]] void throwDamagedTensors(const std::string& path, const std::string& fault);

}  // namespace cleave
