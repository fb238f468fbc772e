#include "tests/operators/guarded_memory.h"

#include <sys/mman.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <unordered_map>

namespace cleave::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 16;  // of a tensor's first byte

class Guarded : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::kCPU};
    const bool isTooMuch =
        options.maxBytes > 0 && (bytes > options.maxBytes || used_ > options.maxBytes - bytes);
    TORCH_CHECK(!isTooMuch, "a case needs more memory than cases may have");
    const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::size_t room = (padded + kPage - 1) / kPage * kPage;
    const std::size_t mapped = room + kPage;
    auto* const begin = static_cast<std::byte*>(
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    TORCH_CHECK(begin != MAP_FAILED, "no memory for a case");
    ::mprotect(options.guardsFront ? begin : begin + room, kPage, PROT_NONE);
    std::byte* const data = options.guardsFront ? begin + kPage : begin + room - padded;
    std::memset(data, options.fill, padded);
    areas_[data] = {begin, mapped, bytes};
    used_ += bytes;
    return {data, data, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }

  static Guarded& only() {
    static auto* const guarded = new Guarded;  // tensors may outlive everything else
    return *guarded;
  }
  GuardedMemory options;

 private:
  struct Area {
    void* begin = nullptr;
    std::size_t mapped = 0;
    std::size_t bytes = 0;
  };

  static void release(void* data) {
    Guarded& guarded = only();
    const auto found = guarded.areas_.find(data);
    if (found == guarded.areas_.end()) return;
    guarded.used_ -= found->second.bytes;
    ::munmap(found->second.begin, found->second.mapped);
    guarded.areas_.erase(found);
  }

  std::unordered_map<void*, Area> areas_;
  std::size_t used_ = 0;
};

}  // namespace

void installGuardedMemory() {
  constexpr std::uint8_t kAboveOthers = 2;
  c10::SetCPUAllocator(&Guarded::only(), kAboveOthers);
}

void setGuardedMemory(const GuardedMemory& memory) { Guarded::only().options = memory; }

}  // namespace cleave::test
