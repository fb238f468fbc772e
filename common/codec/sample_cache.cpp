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
  return sizeof(Row) + kAllocation + elements * sizeof(float);
}

void SampleCache::replace(std::uint32_t number, std::span<const float> row, std::uint64_t step) {
  std::vector<float>& values = rows_[number].values;
  elements_ = row.size();
  if (values.size() == row.size() &&
      std::memcmp(values.data(), row.data(), row.size_bytes()) == 0) {
    return;
  }
  values.assign(row.begin(), row.end());
  rows_[number].step = step;
}

// The header, the numbers (u32) of the samples in ascending order, then their rows (f32).
std::vector<std::byte> SampleCache::save(std::uint64_t since) const {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 0; number < rows_.size(); ++number) {
    const Row& row = rows_[number];
    if (!row.values.empty() && (since == 0 || row.step > since)) numbers.push_back(number);
  }
  if (numbers.empty()) return {};
  const Header header{elements_, numbers.size()};
  const std::size_t rowBytes = header.elements * sizeof(float);
  std::vector<std::byte> bytes(sizeof header +
                               numbers.size() * (sizeof numbers.front() + rowBytes));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::byte* out = bytes.data() + sizeof header;
  std::memcpy(out, numbers.data(), numbers.size() * sizeof numbers.front());
  out += numbers.size() * sizeof numbers.front();
  for (const std::uint32_t number : numbers) {
    std::memcpy(out, rows_[number].values.data(), rowBytes);
    out += rowBytes;
  }
  return bytes;
}

void SampleCache::restore(std::span<const std::byte> bytes) {
  const auto refuse = [] {
    throw badCheckpoint("the bytes are not a cache of this run's samples");
  };
  Header header;
  if (bytes.size() < sizeof header) refuse();
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> rest = bytes.subspan(sizeof header);
  if (header.rows == 0 || header.rows > rows_.size() || header.elements == 0 ||
      (elements_ > 0 && header.elements != elements_) ||
      header.elements > rest.size() / sizeof(float) || rest.size() % header.rows != 0 ||
      rest.size() / header.rows != sizeof(std::uint32_t) + header.elements * sizeof(float)) {
    refuse();
  }
  elements_ = header.elements;
  const std::byte* const numbers = rest.data();
  const std::byte* row = numbers + header.rows * sizeof(std::uint32_t);
  std::uint32_t minNumber = 0;
  for (std::uint64_t j = 0; j < header.rows; ++j, row += header.elements * sizeof(float)) {
    std::uint32_t number = 0;
    std::memcpy(&number, numbers + j * sizeof number, sizeof number);
    if (number < minNumber || number >= rows_.size()) refuse();
    minNumber = number + 1;
    std::vector<float>& values = rows_[number].values;
    values.resize(header.elements);
    std::memcpy(values.data(), row, header.elements * sizeof(float));
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(values.begin(), values.end(), finite)) refuse();
    rows_[number].step = 0;
  }
}

}  // namespace cleave
