// Definitions for code that runs on a GPU and, in tests, on the host. nvcc compiles the code for
// both, other compilers only for the host. Functions of the standard library cannot run on a GPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/codec/tensor.h"

#ifdef __CUDACC__
#define CLEAVE_DEVICE __host__ __device__
// For loops over arrays that must stay in registers: unrolling makes the indices constant.
#define CLEAVE_UNROLL _Pragma("unroll")
// A function that is called so rarely that it should not be inlined.
#define CLEAVE_RARE __noinline__
#else
#define CLEAVE_DEVICE
#define CLEAVE_UNROLL
#define CLEAVE_RARE
#endif

namespace cleave::device {

CLEAVE_DEVICE inline std::uint32_t bitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

CLEAVE_DEVICE inline float floatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
CLEAVE_DEVICE T lesser(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
CLEAVE_DEVICE T greater(T a, T b) {
  return a < b ? b : a;
}
// Returns `min` for NaN, so that the result always converts to an integer.
template <typename T>
CLEAVE_DEVICE T bounded(T value, T min, T max) {
  return value > min ? lesser(value, max) : min;
}

// Infinities and NaN have all exponent bits set.
CLEAVE_DEVICE inline bool isFinite(float value) {
  return (bitsOf(value) & 0x7f800000) != 0x7f800000;
}

CLEAVE_DEVICE inline std::uint32_t bitCount(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__popc(word));
#else
  return static_cast<std::uint32_t>(__builtin_popcount(word));
#endif
}

// ---- Atomic updates of memory shared by a block's or the GPU's threads ----

CLEAVE_DEVICE inline void addTo(std::uint32_t& sum, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(&sum, value);
#else
  sum += value;
#endif
}

CLEAVE_DEVICE inline void raise(std::uint32_t& max, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  // `max` never decreases, so most threads can skip the atomic operation.
  if (*static_cast<volatile std::uint32_t*>(&max) < value) atomicMax(&max, value);
#else
  max = greater(max, value);
#endif
}

}  // namespace cleave::device
