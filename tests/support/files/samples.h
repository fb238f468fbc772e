// Reads samples of datasets whose samples are floats and a class.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/data/samples/dataset.h"
#include "client/data/samples/loader.h"

namespace cleave::test {

struct Sample {
  std::vector<float> values;
  std::int64_t label = -1;
};

inline Sample sampleOf(const Dataset& data, std::uint32_t index,
                       std::optional<std::uint64_t> epoch = std::nullopt) {
  Sample sample;
  sample.values.resize(specOf(data.arrays().front(), 1).elements());
  const std::span<std::byte> arrays[] = {std::as_writable_bytes(std::span(sample.values)),
                                         std::as_writable_bytes(std::span(&sample.label, 1))};
  data.write(index, epoch, arrays);
  return sample;
}

inline std::vector<float> readSample(const Dataset& data, std::uint32_t index) {
  return sampleOf(data, index).values;
}

inline std::int64_t labelOf(const Dataset& data, std::uint32_t index) {
  return sampleOf(data, index).label;
}

inline std::span<const float> valuesOf(const Batch& batch) {
  const BatchArray& array = batch.arrays.front();
  return {reinterpret_cast<const float*>(array.memory.data()), array.spec.elements()};
}

inline std::span<const std::int64_t> labelsOf(const Batch& batch) {
  const BatchArray& array = batch.arrays.back();
  return {reinterpret_cast<const std::int64_t*>(array.memory.data()), array.spec.elements()};
}

}  // namespace cleave::test
