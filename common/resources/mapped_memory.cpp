#include "common/resources/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/core/failpoint.h"
#include "common/core/open_file.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// An unnamed file with this much disk space.
OpenFile reserveFile(const std::string& folder, std::size_t bytes) {
  std::string path = folder + "/.samples-XXXXXX";
  OpenFile file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) throwCannotWrite(folder, "no file for kept samples can be created", errno);
  ::unlink(path.c_str());
  int error = failingCall("reserve");
  if (error == 0) {
    do {
      error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
    } while (error == EINTR);
  }
  if (error != 0) {
    throwCannotWrite(folder, mebibytesText(bytes) + " for kept samples cannot be reserved", error);
  }
  return file;
}

}  // namespace

MappedMemory::MappedMemory(std::size_t bytes, const std::string& folder) : size_(bytes) {
  if (bytes == 0) return;
  const OpenFile file = folder.empty() ? OpenFile() : reserveFile(folder, bytes);
  const int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    throw RunError(
        "not-enough-memory",
        mebibytesText(bytes) + " for kept samples cannot be mapped: " + std::strerror(error),
        "set kept_samples.on_disk, use less training data, or raise the limit for "
        "virtual memory (ulimit -v)");
  }
  data_ = static_cast<std::byte*>(data);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace cleave
