#include "cuda/cuda_gpu.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "common/core/error.h"
#include "cuda/check.h"
#include "cuda/kernels.h"

namespace cleave {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

class CudaGpu : public Gpu {
 public:
  // High priority, like the stages' stream: an action waits for decoded tensors, and the network
  // for encoded ones.
  explicit CudaGpu(CUDAStream compute)
      : compute_(compute),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, compute.device_index())) {}

  std::shared_ptr<std::byte> scratch(std::size_t bytes) override { return share(allocate(bytes)); }

  std::shared_ptr<std::byte> tensorMemory(std::size_t bytes) override {
    at::DataPtr memory = allocate(bytes);
    // The allocator reuses the memory only after work issued to the stages' stream before its
    // release is done.
    c10::cuda::CUDACachingAllocator::recordStream(memory, compute_);
    return share(std::move(memory));
  }

  void copyIn(const std::byte* from, std::size_t bytes, std::byte* to_dev) override {
    use();
    check(cudaMemcpyAsync(to_dev, from, bytes, cudaMemcpyHostToDevice, stream_.stream()));
  }
  void copyOut(const std::byte* from_dev, std::size_t bytes, std::byte* to) override {
    use();
    check(cudaMemcpyAsync(to, from_dev, bytes, cudaMemcpyDeviceToHost, stream_.stream()));
  }
  void clear(std::byte* at_dev, std::size_t bytes) override {
    use();
    check(cudaMemsetAsync(at_dev, 0, bytes, stream_.stream()));
  }
  void launch(const DeviceKernel& kernel) override {
    use();
    check(launchKernel(kernel, stream_.stream()));
  }
  void wait() override {
    use();
    check(cudaStreamSynchronize(stream_.stream()));
  }

 private:
  // Only the device thread has this GPU as its current device.
  void use() const { c10::cuda::set_device(stream_.device_index()); }

  at::DataPtr allocate(std::size_t bytes) const {
    try {
      // Memory is assigned to the current stream.
      const CUDAStreamGuard guard(stream_);
      return c10::cuda::CUDACachingAllocator::get()->allocate(std::max<std::size_t>(bytes, 1));
    } catch (const c10::OutOfMemoryError&) {
      throw RunError("out-of-memory", "the GPU's memory is full",
                     "use a smaller batch, more micro-batches with fewer in flight, or a smaller "
                     "model on that machine");
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      throw RunError("compute-failed", "the GPU cannot be used: " + text.substr(0, text.find('\n')),
                     "check that the driver and LibTorch are compatible");
    }
  }

  static std::shared_ptr<std::byte> share(at::DataPtr memory) {
    auto owner = std::make_shared<at::DataPtr>(std::move(memory));
    auto* const data = static_cast<std::byte*>(owner->get());
    return {std::move(owner), data};
  }

  const CUDAStream compute_;
  const CUDAStream stream_;
};

}  // namespace

std::unique_ptr<Gpu> makeCudaGpu(CUDAStream compute) { return std::make_unique<CudaGpu>(compute); }

}  // namespace cleave
