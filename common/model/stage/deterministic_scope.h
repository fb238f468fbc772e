// Same input, same bits on a GPU too (`device_bits: exact`).
#pragma once

#include <ATen/Context.h>

#include <string>

#include "common/core/error.h"
#include "common/model/experiment.h"

namespace cleave {

// Throws UsageError "bad-device" unless it is a value of Experiment::deviceBits.
inline void checkDeviceBits(const std::string& bits) {
  if (bits == "exact" || bits == "fast") return;
  throw UsageError("bad-device", "there is no device_bits '" + bits + "'", "use exact or fast")
      .about("device_bits");
}

// While this object lives, LibTorch uses deterministic algorithms only, and an operator that has
// none throws c10::Error, which withTorchErrors() translates. Only for "exact" on a GPU: on the
// CPU, the algorithms that stages use are deterministic. LibTorch's setting is of the whole
// process, and the actions of all runs share the device thread, so each action has a scope of its
// own.
class DeterministicScope {
 public:
  DeterministicScope(const Experiment& experiment, at::Device device)
      : isOn_(experiment.deviceBits == "exact" && !device.is_cpu()) {
    // Not only a warning: some operators, such as attention, are deterministic only in strict mode.
    if (isOn_) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~DeterministicScope() {
    if (isOn_) at::globalContext().setDeterministicAlgorithms(false, false);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  const bool isOn_;
};

}  // namespace cleave
