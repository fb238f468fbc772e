#pragma once

#include <string>

namespace cleave {

// Identifies what determines the bits of this process's results in addition to the run spec:
// "LibTorch 2.11.0, AVX512, 2 threads, cpu".
std::string fingerprintOf(int threads, const std::string& device);

}  // namespace cleave
