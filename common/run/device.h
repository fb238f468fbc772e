// Opens the device that a program computes on, by its name in the configuration.
#pragma once

#include <string>

#include "common/device/compute_device.h"

namespace cleave {

// `name`: "cpu", "cuda" (the first GPU) or "cuda:1". For a GPU, loads libcleave_cuda, located
// beside the program or in ../lib/cleave, and removes CUBLAS_WORKSPACE_CONFIG from the environment:
// call it before other threads read that. Throws UsageError "bad-device" if the name is invalid, or
// if there is no such library, driver or GPU.
ComputeDevice& openDevice(const std::string& name);

// Checks only the text of the name. Throws UsageError "bad-device".
void checkDeviceName(const std::string& name);

}  // namespace cleave
