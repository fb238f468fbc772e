// The only entry point of libcleave_cuda, which a program loads only if its device is a GPU. On a
// CPU, programs therefore need no GPU library, start faster and use less memory.
#pragma once

#include <string>

#include "common/device/compute_device.h"

// Opens GPU `index`; later calls return the same device. On failure, returns null and sets `error`
// to the reason. Main thread. The device is never destroyed, since CUDA may already be unloaded
// when the process exits.
extern "C" cleave::ComputeDevice* cleaveOpenCuda(int index, std::string& error) noexcept;
using CleaveOpenCuda = decltype(cleaveOpenCuda);
inline constexpr const char* kCleaveOpenCuda = "cleaveOpenCuda";
