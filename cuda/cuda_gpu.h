// The GPU interface for codecs: its own stream, with memory from LibTorch's allocator.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "compression/device/gpu.h"

namespace cleave {

// `compute`: the stream on which stages compute.
std::unique_ptr<Gpu> makeCudaGpu(c10::cuda::CUDAStream compute);

}  // namespace cleave
