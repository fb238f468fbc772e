#include "common/run/fingerprint.h"

#include <ATen/Version.h>
#include <spdlog/fmt/fmt.h>

#include <cstdint>

#include "common/core/units.h"
#include "common/run/run_folder.h"

namespace cleave {

std::string fingerprintOf(int threads, const std::string& device) {
  return fmt::format("LibTorch {}, {}, {}, {}", libtorchVersion(), at::get_cpu_capability(),
                     countText(static_cast<std::uint64_t>(threads), "thread"), device);
}

}  // namespace cleave
