// Arrays in files of named arrays: their element types, and the values of a sample. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "client/data/samples/dataset.h"

namespace cleave {

// An element type in files, and how its elements are read.
struct StoredDType {
  std::string_view name;   // in safetensors files
  std::string_view numpy;  // in .npy files
  std::size_t bytes;
  DType as;
  void (*convert)(const std::byte* from, std::size_t count, std::byte* to);
};
// Null if the type is not supported.
const StoredDType* dtypeOfSafetensors(std::string_view name);
const StoredDType* dtypeOfNpy(std::string_view name);

// An array in one file.
struct StoredArray {
  SampleArray sample;
  const StoredDType* dtype = nullptr;
  const std::byte* data = nullptr;
  std::size_t elements = 0;  // per sample
};

struct ValueRange {
  std::int64_t min = 0, max = -1;  // of integers; max -1: there are none
  bool hasNaN = false;
};
// The range of a sample's values, except those that are `ignored`.
ValueRange rangeOf(const StoredArray& array, std::uint32_t sample,
                   std::optional<std::int64_t> ignored = std::nullopt);

}  // namespace cleave
