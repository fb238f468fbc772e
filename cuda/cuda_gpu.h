// A GPU as codecs use it: on a stream of its own, with memory of LibTorch's allocator.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "compression/device/gpu.h"

namespace cleave {

// `compute`: where stages compute.
std::unique_ptr<Gpu> makeCudaGpu(c10::cuda::CUDAStream compute);

}  // namespace cleave
