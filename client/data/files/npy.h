// Arrays in NumPy's format .npy, versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cleave {

struct NpyArray {
  std::string dtype;  // NumPy's name without the byte order: "f4"
  std::vector<std::int64_t> shape;
  // The elements, within the file: little-endian, the last dimension varies fastest.
  std::span<const std::byte> bytes;
};

// Throws UsageError "data-damaged" with `path` and the fault: not .npy, truncated, trailing bytes,
// Fortran order, big-endian, or elements that are not numbers or booleans.
NpyArray readNpy(std::span<const std::byte> file, const std::string& path);

}  // namespace cleave
