#include "stage/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace cleave {
namespace {

[[noreturn]] void throwErrno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

SharedMemory::SharedMemory(OpenFile file, std::span<std::byte> bytes)
    : file_(std::move(file)), bytes_(bytes) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

SharedMemory SharedMemory::create(std::size_t size, bool peerWrites) {
  OpenFile file(::memfd_create("cleave-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throwErrno("memfd_create");
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) throwErrno("ftruncate");
  void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) throwErrno("mmap");
  SharedMemory memory(std::move(file), {static_cast<std::byte*>(address), size});
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(memory.file(), F_ADD_SEALS, kSeals) != 0) throwErrno("F_ADD_SEALS");
  if (peerWrites) return memory;
  // Not F_SEAL_FUTURE_WRITE, which also forbids this process to return pages.
  const std::string path = "/proc/self/fd/" + std::to_string(memory.file());
  memory.file_ = OpenFile(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory.file_) throwErrno("open");
  return memory;
}

SharedMemory SharedMemory::open(OpenFile file, std::size_t size, bool writes) {
  void* const address =
      ::mmap(nullptr, size, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) throwErrno("mmap");
  return {std::move(file), {static_cast<std::byte*>(address), size}};
}

// ---- Blocks ----

SharedBlocks::SharedBlocks(SharedMemory memory) : memory_(std::move(memory)) {
  free_[0] = memory_.bytes().size();
}

SharedBlocks::~SharedBlocks() { assert(used_.empty()); }

bool SharedBlocks::contains(const std::byte* bytes) const {
  return bytes >= memory_.bytes().data() && bytes < memory_.bytes().data() + memory_.bytes().size();
}

std::size_t SharedBlocks::offsetOf(const std::byte* bytes) const {
  assert(contains(bytes));
  return static_cast<std::size_t>(bytes - memory_.bytes().data());
}

std::byte* SharedBlocks::allocate(std::size_t size) {
  const std::size_t wanted =
      std::max((size + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find_if(free_, [wanted](const auto& block) { return block.second >= wanted; });
    if (found != free_.end()) {
      const auto [offset, all] = *found;
      free_.erase(found);
      if (all > wanted) free_[offset + wanted] = all - wanted;
      used_[offset] = wanted;
      return memory_.bytes().data() + offset;
    }
  }
  return static_cast<std::byte*>(::operator new(wanted, std::align_val_t(kAlignment)));
}

void SharedBlocks::returnFree() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, size] : free_) {
    const std::size_t begin = (offset + page - 1) / page * page;
    const std::size_t end = (offset + size) / page * page;
    if (begin < end) ::madvise(memory_.bytes().data() + begin, end - begin, MADV_REMOVE);
  }
}

void SharedBlocks::release(std::byte* block) noexcept {
  if (!contains(block)) return ::operator delete(block, std::align_val_t(kAlignment));
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(offsetOf(block));
  assert(used != used_.end());
  auto at = free_.insert(*used).first;
  used_.erase(used);
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

}  // namespace cleave
