// Stages on a GPU. LibTorch's operations run on one stream, and copies to and from pinned host
// memory on two others. A driver callback reports the end of an action. A stage's output is
// therefore complete when a codec receives it: the codec need not wait for an event.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "common/device/cuda_library.h"
#include "cuda/check.h"
#include "cuda/cuda_gpu.h"

namespace cleave {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

class Event {
 public:
  // An untimed event can only order streams.
  explicit Event(bool isTimed) {
    check(cudaEventCreateWithFlags(&event_, isTimed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const CUDAStream& stream) { check(cudaEventRecord(event_, stream.stream())); }
  // Makes later work on `stream` wait for what was recorded.
  void block(const CUDAStream& stream) { check(cudaStreamWaitEvent(stream.stream(), event_, 0)); }
  // Both events must be timed and done. Throws any error that occurred on the device meanwhile.
  double secondsSince(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_));
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Any thread. Each call selects the GPU, because it is the current device only on the device
// thread.
class PinnedMemory : public BufferMemory {
 public:
  explicit PinnedMemory(int index) : index_(index) {}

  std::byte* allocate(std::size_t size) override {
    check(cudaSetDevice(index_));
    void* block = nullptr;
    if (cudaHostAlloc(&block, size, cudaHostAllocPortable) != cudaSuccess) throw std::bad_alloc();
    return static_cast<std::byte*>(block);
  }
  void release(std::byte* block) noexcept override {
    cudaSetDevice(index_);
    cudaFreeHost(block);
  }

 private:
  const int index_;
};

// Runs on a thread of the driver, where CUDA functions must not be called. Unlike
// cudaLaunchHostFunc's callback, it also runs after a device error, which Seconds then throws on
// the device thread.
void CUDART_CB callDone(cudaStream_t, cudaError_t, void* data) {
  const std::unique_ptr<std::function<void()>> done(static_cast<std::function<void()>*>(data));
  (*done)();
}

class CudaDevice : public ComputeDevice, public DeviceQueue {
 public:
  explicit CudaDevice(int index)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(index)),
        compute_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index())),
        copyIn_(c10::cuda::getStreamFromPool(false, device_.index())),
        copyOut_(c10::cuda::getStreamFromPool(false, device_.index())),
        gpu_(makeCudaGpu(compute_)) {
    check(cudaGetDeviceProperties(&properties_, index));
    // Work outside actions, such as building a stage, must use the stream too.
    useStream();
  }

  at::Device device() const override { return device_; }
  std::string description() const override {
    return std::string(properties_.name) + " with " + std::to_string(memoryBytes() >> 20) + " MiB";
  }
  std::size_t memoryBytes() const override { return properties_.totalGlobalMem; }

  std::size_t peakMemory() const override {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device().index());
    return static_cast<std::size_t>(
        stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
            .peak);
  }

  at::Tensor toDevice(const at::Tensor& host) override {
    at::Tensor tensor;
    {
      // The allocator assigns memory to the current stream, so copyIn_, which writes it first, must
      // be current.
      const CUDAStreamGuard guard(copyIn_);
      tensor = at::empty_strided(host.sizes(), host.strides(), host.options().device(device_));
      check(cudaMemcpyAsync(tensor.mutable_data_ptr(), host.const_data_ptr(), host.nbytes(),
                            cudaMemcpyHostToDevice, copyIn_.stream()));
    }
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), compute_);
    Event copied(false);
    copied.record(copyIn_);
    copied.block(compute_);
    held_.push_back(host);
    // The action's time does not include waiting for its first input.
    if (start_ && !std::exchange(hasInput_, true)) start_->record(compute_);
    return tensor;
  }

  at::Tensor toHost(const at::Tensor& tensor) override {
    at::Tensor host = at::empty_strided(
        tensor.sizes(), tensor.strides(),
        tensor.options().device(at::kCPU).pinned_memory(true).requires_grad(false));
    Event computed(false);
    computed.record(compute_);
    computed.block(copyOut_);
    check(cudaMemcpyAsync(host.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes(),
                          cudaMemcpyDeviceToHost, copyOut_.stream()));
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), copyOut_);
    leaving_ = true;
    return host;
  }

  DeviceQueue* queue() override { return this; }
  Gpu* gpu() override { return gpu_.get(); }
  std::shared_ptr<BufferMemory> hostMemory() override {
    return std::make_shared<PinnedMemory>(device_.index());
  }

  void begin() override {
    useStream();
    held_.clear();
    leaving_ = false;
    hasInput_ = false;
    start_ = std::make_shared<Event>(true);
    start_->record(compute_);
  }

  Seconds end(std::function<void()> done) override {
    const auto stop = std::make_shared<Event>(true);
    stop->record(compute_);
    // An action is complete when both its output has been copied and its last kernel is done:
    // kernels can follow the output's.
    const CUDAStream& last = leaving_ ? copyOut_ : compute_;
    if (leaving_) stop->block(copyOut_);
    auto callback = std::make_unique<std::function<void()>>(std::move(done));
    check(cudaStreamAddCallback(last.stream(), callDone, callback.get(), 0));
    callback.release();
    return [start = std::exchange(start_, nullptr), stop, held = std::exchange(held_, {})] {
      return stop->secondsSince(*start);
    };
  }

  void releaseMemory() override {
    c10::cuda::CUDACachingAllocator::emptyCache();
    at::getHostAllocator(at::kCUDA)->empty_cache();
  }

  void drain() override {
    // Errors are ignored: an error also ends the wait, and the callbacks run in any case.
    for (const CUDAStream* stream : {&copyIn_, &compute_, &copyOut_}) {
      cudaStreamSynchronize(stream->stream());
    }
  }

 private:
  void useStream() const {
    c10::cuda::set_device(device_.index());
    c10::cuda::setCurrentCUDAStream(compute_);
  }

  const at::Device device_;
  const CUDAStream compute_;
  const CUDAStream copyIn_;
  const CUDAStream copyOut_;
  const std::unique_ptr<Gpu> gpu_;
  cudaDeviceProp properties_{};
  // State of the current action.
  std::shared_ptr<Event> start_;
  std::vector<at::Tensor> held_;  // host memory that is still being read
  bool leaving_ = false;
  bool hasInput_ = false;
};

}  // namespace
}  // namespace cleave

extern "C" cleave::ComputeDevice* cleaveOpenCuda(int index, std::string& error) noexcept {
  try {
    const int count = c10::cuda::device_count();
    if (count == 0) {
      error = "the driver lists no GPU that this LibTorch can use";
      return nullptr;
    }
    if (index >= count) {
      error = "there is no GPU " + std::to_string(index) + ": GPUs are numbered 0 to " +
              std::to_string(count - 1);
      return nullptr;
    }
    // For reproducible bits and full fp32 precision.
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().setAllowTF32CuDNN(false);
    at::globalContext().lazyInitDevice(at::kCUDA);
    // Graphs do not read memory before it is written (replacementOf() in prepared_graph.cpp).
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    static std::map<int, cleave::CudaDevice*> devices;
    cleave::CudaDevice*& device = devices[index];
    if (device == nullptr) device = new cleave::CudaDevice(index);
    return device;
  } catch (const std::exception& failure) {
    error = failure.what();
    return nullptr;
  }
}
