// Conversion of CUDA errors to exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace cleave {

inline void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(result));
}

}  // namespace cleave
