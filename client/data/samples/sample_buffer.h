// Reads samples one at a time. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "client/data/samples/dataset.h"

namespace cleave {

class SampleBuffer {
 public:
  explicit SampleBuffer(const Dataset& data) : arrays_(data.arrays()) {
    for (const SampleArray& array : arrays_) memory_.emplace_back(specOf(array, 1).bytes());
    spans_.assign(memory_.begin(), memory_.end());
  }

  void read(const Dataset& data, std::uint32_t index,
            std::optional<std::uint64_t> epoch = std::nullopt) {
    data.write(index, epoch, spans_);
  }
  // The class of the sample that was read; only valid if the target is a class.
  std::int64_t label() const {
    std::int64_t label = 0;
    std::memcpy(&label, memory_.back().data(), sizeof label);
    return label;
  }
  const std::vector<SampleArray>& arrays() const { return arrays_; }

  // Calls visit(number) for each value of an array.
  template <typename Visit>
  void visit(std::size_t array, Visit visit) const {
    const std::vector<std::byte>& bytes = memory_[array];
    if (arrays_[array].dtype == DType::f32) {
      visitAs<float>(bytes, visit);
    } else {
      visitAs<std::int64_t>(bytes, visit);  // the only other dtype of samples
    }
  }

 private:
  template <typename T, typename Visit>
  static void visitAs(const std::vector<std::byte>& bytes, Visit visit) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      visit(value);
    }
  }

  std::vector<SampleArray> arrays_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> spans_;
};

}  // namespace cleave
