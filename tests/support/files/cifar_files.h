// Small files in CIFAR's binary format, in their own folder.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace cleave::test {

inline constexpr std::size_t kCifarPixels = 3072;

// A record: the label bytes, then pixels that depend on `seed` and the position.
inline std::vector<std::uint8_t> cifarRecord(const std::vector<std::uint8_t>& labels,
                                             std::size_t seed) {
  std::vector<std::uint8_t> record = labels;
  for (std::size_t j = 0; j < kCifarPixels; ++j) {
    record.push_back(static_cast<std::uint8_t>((j * 7 + seed * 31 + j / 1024 * 50) % 256));
  }
  return record;
}

class CifarFolder {
 public:
  explicit CifarFolder(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("cleave_cifar_" + name + "_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CifarFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::vector<std::uint8_t>& bytes) const {
    std::ofstream file(folder_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  // Writes `count` records to each of CIFAR-10's files.
  void writeCifar10(std::size_t count) const {
    for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                             "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
      std::vector<std::uint8_t> bytes;
      for (std::size_t j = 0; j < count; ++j) {
        const std::size_t seed = next_++;
        const auto record = cifarRecord({static_cast<std::uint8_t>(seed % 10)}, seed);
        bytes.insert(bytes.end(), record.begin(), record.end());
      }
      write(name, bytes);
    }
  }

 private:
  std::filesystem::path folder_;
  mutable std::size_t next_ = 0;
};

}  // namespace cleave::test
