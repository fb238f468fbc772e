// Runs kernels of compression/device on a GPU.
#pragma once

#include <driver_types.h>

#include "compression/device/gpu.h"

namespace cleave {

// Issues it to the stream, whose device is current. Returns why it could not.
cudaError_t launchKernel(const DeviceKernel& kernel, cudaStream_t stream);

}  // namespace cleave
