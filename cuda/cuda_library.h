// The one door of libcleave_cuda, which a daemon loads when its device is a GPU: whoever computes
// on the CPU then needs no GPU library, and starts sooner with less memory.
#pragma once

#include <string>

#include "common/model/compute_device.h"

// Opens GPU `index`, or returns it again. Returns null and says why in `error` where that is
// impossible. Main thread. The device is never destroyed: CUDA may be gone by the time a process
// ends.
extern "C" cleave::ComputeDevice* cleaveOpenCuda(int index, std::string& error) noexcept;
using CleaveOpenCuda = decltype(cleaveOpenCuda);
inline constexpr const char* kCleaveOpenCuda = "cleaveOpenCuda";
