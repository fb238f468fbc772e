#include "common/codec/sample_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "common/codec/checkpoint_error.h"

namespace cleave {
namespace {

struct Header {
  std::uint64_t elements = 0;  // of a row
  std::uint64_t rows = 0;
};

}  // namespace

// Makes room for rows of this size.
void SampleCache::useRowsOf(std::size_t elements) {
  if (elements_ == elements) return;
  constexpr std::size_t kMax = std::numeric_limits<std::ptrdiff_t>::max();
  if (elements_ != 0 || elements > kMax / sizeof(float) / steps_.size()) {
    throw badCheckpoint("the kept samples have rows of another size than the run's tensors");
  }
  rows_ = MappedMemory(steps_.size() * elements * sizeof(float), folder_);
  elements_ = elements;
}

void SampleCache::replace(std::uint32_t number, std::span<const float> row, std::uint64_t step) {
  useRowsOf(row.size());
  const std::span<float> place = placeOf(number);
  const bool isEqual = std::memcmp(place.data(), row.data(), row.size_bytes()) == 0;
  if (steps_[number] != kNone && isEqual) return;
  std::copy(row.begin(), row.end(), place.begin());
  steps_[number] = step;
}

// The header, the numbers (u32) of the samples in ascending order, then their rows (f32).
HeldBytes SampleCache::save(std::uint64_t since) const {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 0; number < steps_.size(); ++number) {
    const std::uint64_t step = steps_[number];
    if (step != kNone && (since == 0 || step > since)) numbers.push_back(number);
  }
  if (numbers.empty()) return {};
  const Header header{elements_, numbers.size()};
  const std::size_t rowBytes = header.elements * sizeof(float);
  const std::size_t numbersBytes = numbers.size() * sizeof numbers.front();
  const auto saved = std::make_shared<MappedMemory>(
      sizeof header + numbersBytes + numbers.size() * rowBytes, folder_);
  std::byte* out = saved->span().data();
  std::memcpy(out, &header, sizeof header);
  out += sizeof header;
  std::memcpy(out, numbers.data(), numbersBytes);
  out += numbersBytes;
  for (const std::uint32_t number : numbers) {
    std::memcpy(out, placeOf(number).data(), rowBytes);
    out += rowBytes;
  }
  return {saved->span(), saved};
}

void SampleCache::restore(std::span<const std::byte> bytes) {
  const auto refuse = [] {
    throw badCheckpoint("the bytes are not a cache of this run's samples");
  };
  Header header;
  if (bytes.size() < sizeof header) refuse();
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> rest = bytes.subspan(sizeof header);
  if (header.rows == 0 || header.rows > steps_.size() || header.elements == 0 ||
      (elements_ > 0 && header.elements != elements_) ||
      header.elements > rest.size() / sizeof(float) || rest.size() % header.rows != 0 ||
      rest.size() / header.rows != sizeof(std::uint32_t) + header.elements * sizeof(float)) {
    refuse();
  }
  useRowsOf(header.elements);
  const std::byte* const numbers = rest.data();
  const std::byte* row = numbers + header.rows * sizeof(std::uint32_t);
  std::uint32_t minNumber = 0;
  for (std::uint64_t j = 0; j < header.rows; ++j, row += header.elements * sizeof(float)) {
    std::uint32_t number = 0;
    std::memcpy(&number, numbers + j * sizeof number, sizeof number);
    if (number < minNumber || number >= steps_.size()) refuse();
    minNumber = number + 1;
    const std::span<float> place = placeOf(number);
    std::memcpy(place.data(), row, place.size_bytes());
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(place.begin(), place.end(), finite)) refuse();
    steps_[number] = kRestored;
  }
}

}  // namespace cleave
