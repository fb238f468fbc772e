#include "common/checkpoint/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "common/core/durable.h"
#include "common/core/open_file.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throwCannotRead(const std::string& path, int error) {
  throw RunError("run-unreadable", path + ": cannot be read: " + std::strerror(error),
                 "check that you have permission to read it, and that the disk works");
}

// A file that is open for reading.
class ReadableFile {
 public:
  // nullopt if the file does not exist.
  static std::optional<ReadableFile> at(const std::string& path) {
    OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file) throwCannotRead(path, errno);
    return ReadableFile(path, std::move(file));
  }

  std::size_t size() const {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) throwCannotRead(path_, errno);
    return static_cast<std::size_t>(status.st_size);
  }

  // Reads until `into` is full or the file ends, and returns the number of bytes read.
  std::size_t readAt(std::uint64_t offset, std::span<std::byte> into) const {
    std::size_t have = 0;
    while (have < into.size()) {
      const ssize_t got = ::pread(file_.get(), into.data() + have, into.size() - have,
                                  static_cast<off_t>(offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throwCannotRead(path_, errno);
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
    }
    return have;
  }

  // The contents, as a view of the file.
  HeldBytes mapped() const {
    const std::size_t size = this->size();
    if (size == 0) return HeldBytes();
    void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.get(), 0);
    if (data == MAP_FAILED) throwCannotRead(path_, errno);
    const std::shared_ptr<const void> mapping(
        data, [size](const void* held) { ::munmap(const_cast<void*>(held), size); });
    return HeldBytes({static_cast<const std::byte*>(data), size}, mapping);
  }

 private:
  ReadableFile(const std::string& path, OpenFile file) : path_(path), file_(std::move(file)) {}

  std::string path_;
  OpenFile file_;
};

class DiskFiles : public Files {
 public:
  std::optional<std::string> read(const std::string& path) override {
    const auto file = ReadableFile::at(path);
    if (!file) return std::nullopt;
    std::string bytes(file->size(), '\0');
    bytes.resize(file->readAt(0, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }

  std::optional<HeldBytes> view(const std::string& path) override {
    const auto file = ReadableFile::at(path);
    if (!file) return std::nullopt;
    return file->mapped();
  }

  void writePieces(const std::string& path, std::span<const std::string_view> pieces) override {
    writeFileDurably(path, pieces);
  }

  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return;
    throwCannotWrite(path, "cannot be removed", errno);
  }

  bool readAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into) override {
    const auto file = ReadableFile::at(path);
    return file && file->readAt(offset, into) == into.size();
  }

  void touch(const std::string& path) override {
    [[maybe_unused]] const int ignored = ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  }

  std::int64_t changeTime(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return 0;
    constexpr std::int64_t kSecond = 1'000'000'000;
    return status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec;
  }

  std::uint64_t size(const std::string& path) override {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    return error ? 0 : bytes;
  }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      std::error_code ignored;
      if (entry.is_regular_file(ignored)) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void makeFolder(const std::string& folder) override {
    std::error_code error;
    const bool isNew = fs::create_directories(folder, error);
    if (error) throwCannotWrite(folder, "the folder cannot be created", error.value());
    if (isNew) syncFolder(fs::path(folder).parent_path().string());
  }
};

}  // namespace

Files& diskFiles() {
  static DiskFiles files;
  return files;
}

}  // namespace cleave
