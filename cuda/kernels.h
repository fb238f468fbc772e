// Runs the kernels of compression/device on a GPU.
#pragma once

#include <driver_types.h>

#include "compression/device/gpu.h"

namespace cleave {

// Issues the kernel to the stream, whose device must be current. Returns the launch error, if any.
cudaError_t launchKernel(const DeviceKernel& kernel, cudaStream_t stream);

}  // namespace cleave
