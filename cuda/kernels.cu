// Executes kernels: threads, barriers between phases, and the reductions over lanes that a kernel
// requests. The kernels' computations are in compression/device and are tested without a GPU.
#include <type_traits>

#include "cuda/kernels.h"

namespace cleave {
namespace {

using device::kQuads;
using device::kThreads;

template <typename Kernel, typename = void>
struct ReduceAfter {
  static constexpr int kPhase = -1;
};
template <typename Kernel>
struct ReduceAfter<Kernel, std::void_t<decltype(Kernel::kReduceAfter)>> {
  static constexpr int kPhase = Kernel::kReduceAfter;
};

// Butterfly reduction over `lanes`, a power of 2 and at most a warp; all lanes get the result. All
// threads of the warp must call it.
template <typename Kernel>
__device__ void reduceLanes(const Kernel& kernel, typename Kernel::Thread& thread) {
  constexpr unsigned kWholeWarp = 0xffffffff;
  const int lanes = static_cast<int>(kernel.reduceLanes());
  for (int distance = 1; distance < lanes; distance *= 2) {
    for (int k = 0; k < static_cast<int>(kQuads); ++k) {
      const device::Range mine = thread.ranges[k];
      const device::Range other{__shfl_xor_sync(kWholeWarp, mine.min, distance),
                                __shfl_xor_sync(kWholeWarp, mine.max, distance)};
      thread.ranges[k] = Kernel::join(mine, other);
    }
  }
}

template <int kPhase, typename Kernel>
__device__ void runPhases(const Kernel& kernel, device::Place at, typename Kernel::Shared& shared,
                          typename Kernel::Thread& thread) {
  if constexpr (kPhase < Kernel::kPhases) {
    kernel.template run<kPhase>(at, shared, thread);
    if constexpr (kPhase == ReduceAfter<Kernel>::kPhase) reduceLanes(kernel, thread);
    if constexpr (kPhase + 1 < Kernel::kPhases) __syncthreads();
    runPhases<kPhase + 1>(kernel, at, shared, thread);
  }
}

template <typename Kernel>
__global__ void __launch_bounds__(kThreads) execute(const Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  typename Kernel::Thread thread;
  runPhases<0>(kernel, {blockIdx.x, gridDim.x, threadIdx.x}, shared, thread);
}

}  // namespace

cudaError_t launchKernel(const DeviceKernel& kernel, cudaStream_t stream) {
  std::visit([stream](const auto& one) { execute<<<one.blocks(), kThreads, 0, stream>>>(one); },
             kernel);
  return cudaGetLastError();
}

}  // namespace cleave
