#include "common/codec/sample_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/codec/checkpoint_error.h"

namespace cleave {
namespace {

struct Header {
  std::uint64_t elements = 0;  // of a row
  std::uint64_t rows = 0;
};

}  // namespace

std::size_t SampleCache::bytesPerSample(std::size_t elements) {
  constexpr std::size_t kAllocation = 24;  // what malloc adds to a row
  return sizeof(std::vector<float>) + kAllocation + elements * sizeof(float);
}

// The header, the numbers (u32) of the samples that have rows, then the rows (f32).
std::vector<std::byte> SampleCache::save() const {
  Header header;
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 0; number < rows_.size(); ++number) {
    if (!rows_[number].empty()) numbers.push_back(number);
  }
  header.rows = numbers.size();
  if (!numbers.empty()) header.elements = rows_[numbers.front()].size();
  const std::size_t rowBytes = header.elements * sizeof(float);
  std::vector<std::byte> bytes(sizeof header +
                               numbers.size() * (sizeof numbers.front() + rowBytes));
  std::memcpy(bytes.data(), &header, sizeof header);
  if (numbers.empty()) return bytes;
  std::byte* out = bytes.data() + sizeof header;
  std::memcpy(out, numbers.data(), numbers.size() * sizeof numbers.front());
  out += numbers.size() * sizeof numbers.front();
  for (const std::uint32_t number : numbers) {
    std::memcpy(out, rows_[number].data(), rowBytes);
    out += rowBytes;
  }
  return bytes;
}

SampleCache SampleCache::restore(std::span<const std::byte> bytes, std::uint32_t samples) {
  const auto refuse = [] {
    throw badCheckpoint("the bytes are not a cache of this run's samples");
  };
  Header header;
  if (bytes.size() < sizeof header) refuse();
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> rest = bytes.subspan(sizeof header);
  SampleCache cache(samples);
  if (header.rows == 0 && rest.empty()) return cache;
  if (header.rows == 0 || header.rows > samples || header.elements == 0 ||
      header.elements > rest.size() / sizeof(float) || rest.size() % header.rows != 0 ||
      rest.size() / header.rows != sizeof(std::uint32_t) + header.elements * sizeof(float)) {
    refuse();
  }
  const std::byte* const numbers = rest.data();
  const std::byte* row = numbers + header.rows * sizeof(std::uint32_t);
  for (std::uint64_t j = 0; j < header.rows; ++j, row += header.elements * sizeof(float)) {
    std::uint32_t number = 0;
    std::memcpy(&number, numbers + j * sizeof number, sizeof number);
    if (number >= samples || !cache.rows_[number].empty()) refuse();
    std::vector<float>& values = cache.rows_[number];
    values.resize(header.elements);
    std::memcpy(values.data(), row, header.elements * sizeof(float));
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(values.begin(), values.end(), finite)) refuse();
  }
  return cache;
}

}  // namespace cleave
