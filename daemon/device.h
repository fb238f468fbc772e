// The device that a daemon computes on, from its configuration's text.
#pragma once

#include <string>

#include "common/model/compute_device.h"

namespace cleave {

// "cpu", "cuda" (the first GPU), "cuda:1". For GPUs, loads libcleave_cuda, which lies beside the
// program or in ../lib/cleave. Throws UsageError "bad-device": another text, no such library, no
// driver, no such GPU.
ComputeDevice& openDevice(const std::string& name);

// Checks the text alone. Throws UsageError "bad-device".
void checkDeviceName(const std::string& name);

}  // namespace cleave
