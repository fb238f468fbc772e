// Compares every kernel, with every instruction set of this CPU, with its scalar implementation,
// byte for byte.
#include <hwy/highway.h>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "common/core/random.h"
#include "compression/kernels/plain.h"

using namespace cleave;
using namespace cleave::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr std::size_t kGuard = 64;
constexpr std::byte kFill{0xa5};

using Bytes = std::vector<std::byte>;

// Runs `check` once per instruction set, and once with the library's own choice.
void forEachTarget(const std::function<void()>& check) {
  check();
  const std::int64_t all = hwy::SupportedTargets() & HWY_TARGETS;
  for (std::int64_t left = all; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    INFO(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    check();
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<float> normal(std::size_t count, float scale = 1) {
  std::vector<float> values(count);
  fillNormal(randomKey(5, "kernels-test"), values);
  for (float& value : values) value *= scale;
  return values;
}

// Floats with random bits.
std::vector<float> anyFloats(std::size_t count) {
  std::vector<float> values(count);
  const RandomKey key = randomKey(6, "kernels-test");
  for (std::size_t j = 0; j < count; ++j)
    values[j] = std::bit_cast<float>(static_cast<std::uint32_t>(randomBits(key, j)));
  return values;
}

std::vector<std::vector<float>> blockSamples(std::size_t count) {
  std::vector<std::vector<float>> samples;
  for (const float scale : {1.0f, 0x1p-40f, 0x1p40f, 1e-38f, 1e-42f, 8e37f, 65504.0f, 1e-6f})
    samples.push_back(normal(count, scale));
  samples.push_back(normal(count));
  for (float& value : samples.back()) value = std::min(std::max(value, -0.0f), 1.0f);
  samples.emplace_back(count, 0.1f);
  samples.emplace_back(count, -0.0f);
  samples.emplace_back(count, kLargest);
  samples.push_back(normal(count));
  for (std::size_t j = 0; j < count; j += 37) samples.back()[j] = j % 2 ? kLargest : -kLargest;
  samples.push_back(normal(count));
  for (float& value : samples.back()) value += 1000;
  samples.push_back(anyFloats(count));
  for (float& value : samples.back())
    if (!std::isfinite(value)) value = 0;
  return samples;
}

// The bytes that `write` writes to a buffer of this size. Checks that it writes nowhere else.
template <typename Write>
Bytes written(std::size_t bytes, Write write) {
  Bytes out(bytes + kGuard, kFill);
  write(out.data());
  for (std::size_t j = bytes; j < out.size(); ++j) REQUIRE(out[j] == kFill);
  out.resize(bytes);
  return out;
}

template <typename Write>
Bytes writtenFloats(std::size_t count, Write write) {
  return written(count * sizeof(float), [&](std::byte* out) {
    // A copy at an address that is unaligned for any vector.
    std::vector<float> values(count + 1);
    write(values.data() + 1);
    if (count > 0) std::memcpy(out, values.data() + 1, count * sizeof(float));
  });
}

// A copy in a heap block of exactly this size, so that AddressSanitizer detects any read beyond it.
template <typename T>
std::vector<T> exactly(const std::vector<T>& values, std::size_t count) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

const std::vector<std::size_t> kCounts = {1,  2,  7,  8,   15,  16,   17,   31,  33,
                                          63, 64, 65, 100, 127, 1000, 2048, 5001};

}  // namespace

TEST_CASE("ranges equal those of the scalar kernel on every instruction set") {
  const std::vector<float> values = normal(5001);
  forEachTarget([&] {
    for (const std::size_t count : kCounts) {
      for (const bool zeros : {false, true}) {
        std::vector<float> some = exactly(values, count);
        if (zeros)
          for (float& value : some) value = value > 0 ? 0.0f : -0.0f;
        const Range expected = plain::rangeOf(some.data(), count);
        const Range range = rangeOf(some.data(), count);
        REQUIRE(range.finite);
        REQUIRE(std::bit_cast<std::uint32_t>(range.min) ==
                std::bit_cast<std::uint32_t>(expected.min));
        REQUIRE(std::bit_cast<std::uint32_t>(range.max) ==
                std::bit_cast<std::uint32_t>(expected.max));
      }
      for (const float bad : {kNaN, kInfinity, -kInfinity}) {
        for (std::size_t place = 0; place < count; place += 1 + count / 40) {
          std::vector<float> some = exactly(values, count);
          some[place] = bad;
          REQUIRE_FALSE(rangeOf(some.data(), count).finite);
        }
      }
    }
  });
}

TEST_CASE("conversions equal those of the scalar kernel on every instruction set") {
  std::vector<float> values = anyFloats(200000);
  for (const float value : normal(5001)) values.push_back(value);
  for (const float value : normal(5001, 1e-6f)) values.push_back(value);
  std::vector<std::byte> patterns(2 * 0x10000);
  for (std::size_t j = 0; j < 0x10000; ++j) {
    const auto pattern = static_cast<std::uint16_t>(j);
    std::memcpy(&patterns[2 * j], &pattern, 2);
  }
  forEachTarget([&] {
    const auto narrow = [&](auto convert, const std::vector<float>& in) {
      return written(2 * in.size(), [&](std::byte* out) { convert(in.data(), in.size(), out); });
    };
    const auto widen = [&](auto convert, const Bytes& in) {
      return writtenFloats(in.size() / 2,
                           [&](float* out) { convert(in.data(), in.size() / 2, out); });
    };
    REQUIRE(narrow(halfFromFloat, values) == narrow(plain::halfFromFloat, values));
    REQUIRE(narrow(bf16FromFloat, values) == narrow(plain::bf16FromFloat, values));
    REQUIRE(widen(floatFromHalf, patterns) == widen(plain::floatFromHalf, patterns));
    REQUIRE(widen(floatFromBf16, patterns) == widen(plain::floatFromBf16, patterns));
    for (const std::size_t count : kCounts) {
      const std::vector<float> some = exactly(values, count);
      const Bytes bytes = exactly(patterns, 2 * count);
      REQUIRE(narrow(halfFromFloat, some) == narrow(plain::halfFromFloat, some));
      REQUIRE(narrow(bf16FromFloat, some) == narrow(plain::bf16FromFloat, some));
      REQUIRE(widen(floatFromHalf, bytes) == widen(plain::floatFromHalf, bytes));
      REQUIRE(widen(floatFromBf16, bytes) == widen(plain::floatFromBf16, bytes));
    }
  });
}

TEST_CASE("8-bit floats equal those of the scalar kernel on every instruction set") {
  std::vector<float> values = normal(5001);
  Bytes codes(5001);
  for (std::size_t j = 0; j < codes.size(); ++j) codes[j] = static_cast<std::byte>(j);
  forEachTarget([&] {
    for (const Fp8 format : {Fp8::e4m3, Fp8::e5m2}) {
      for (const int exponent : {-126, -20, -8, 0, 100, 120}) {
        std::vector<float> scaled = values;
        for (float& value : scaled) value = std::ldexp(value, exponent + 6);
        for (const std::size_t count : kCounts) {
          const std::vector<float> some = exactly(scaled, count);
          REQUIRE(written(count, [&](std::byte* out) {
                    fp8FromFloat(some.data(), count, format, exponent, out);
                  }) == written(count, [&](std::byte* out) {
                    plain::fp8FromFloat(some.data(), count, format, exponent, out);
                  }));
          const Bytes in = exactly(codes, count);
          const auto widenBy = [&](auto widen) {
            return writtenFloats(count, [&](float* out) {
              REQUIRE(widen(in.data(), count, format, exponent, kLargest, out) ==
                      (count <= fp8MaxCode(format) + 1));
            });
          };
          REQUIRE(widenBy(floatFromFp8) == widenBy(plain::floatFromFp8));
        }
      }
    }
  });
}

TEST_CASE("codes at every width equal those of the scalar kernel on every instruction set") {
  const std::vector<float> values = normal(5001);
  const Range range = rangeOf(values.data(), values.size());
  forEachTarget([&] {
    for (int bits = 1; bits <= 16; ++bits) {
      const QuantGrid grid{range.min,
                           (range.max - range.min) / static_cast<float>((1 << bits) - 1)};
      for (const std::size_t count : kCounts) {
        INFO(bits << " bits, " << count << " values");
        const std::vector<float> some = exactly(values, count);
        const std::size_t bytes = packedBytes(count, bits);
        const Bytes expected = written(
            bytes, [&](std::byte* out) { plain::quantize(some.data(), count, grid, bits, out); });
        const Bytes codes =
            written(bytes, [&](std::byte* out) { quantize(some.data(), count, grid, bits, out); });
        REQUIRE(codes == expected);
        const Bytes back = writtenFloats(
            count, [&](float* out) { dequantize(codes.data(), count, grid, bits, out); });
        REQUIRE(back == writtenFloats(count, [&](float* out) {
                  plain::dequantize(codes.data(), count, grid, bits, out);
                }));
      }
    }
  });
}

TEST_CASE("blocks of every format equal those of the scalar kernel on every instruction set") {
  const std::vector<std::vector<float>> samples = blockSamples(7 * 1024);
  forEachTarget([&] {
    for (const std::size_t size : {32, 64, 256, 1024}) {
      for (int bits = 1; bits <= 8; ++bits) {
        for (const bool half : {false, true}) {
          for (const bool stochastic : {false, true}) {
            const BlockFormat format{size, bits, half, stochastic, 0x12345678, 0x9abcdef0};
            for (std::size_t sample = 0; sample < samples.size(); ++sample) {
              const std::size_t blocks = sample % 3 == 0 ? 1 : 7 * 1024 / size - sample % 3;
              INFO(size << " values, " << bits << " bits, sample " << sample
                        << (half ? ", fp16" : "") << (stochastic ? ", stochastic" : ""));
              const std::vector<float> values = exactly(samples[sample], blocks * size);
              const std::size_t codeBytes = packedBytes(blocks * size, bits);
              const auto encodeBy = [&](auto encode) {
                Bytes headers;
                Bytes codes = written(codeBytes, [&](std::byte* out) {
                  headers = written(blocks * kBlockHeaderBytes, [&](std::byte* headersOut) {
                    REQUIRE(encode(values.data(), blocks, format, 12345, headersOut, out));
                  });
                });
                headers.insert(headers.end(), codes.begin(), codes.end());
                return headers;
              };
              const Bytes encoded = encodeBy(encodeBlocks);
              REQUIRE(encoded == encodeBy(plain::encodeBlocks));
              const auto decodeBy = [&](auto decode) {
                return writtenFloats(blocks * size, [&](float* out) {
                  REQUIRE(decode(encoded.data(), encoded.data() + blocks * kBlockHeaderBytes,
                                 blocks, format, kLargest, out));
                });
              };
              REQUIRE(decodeBy(decodeBlocks) == decodeBy(plain::decodeBlocks));
            }
          }
        }
      }
    }
  });
}

TEST_CASE("blocks with NaN or infinity anywhere are refused on every instruction set") {
  const BlockFormat format;
  std::byte headers[20 * kBlockHeaderBytes];
  std::byte codes[20 * 64];
  forEachTarget([&] {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      for (std::size_t place = 0; place < std::size_t{20} * 64; place += 7) {
        std::vector<float> values = normal(std::size_t{20} * 64);
        values[place] = bad;
        REQUIRE_FALSE(encodeBlocks(values.data(), 20, format, 0, headers, codes));
      }
    }
  });
}

TEST_CASE("headers with NaN, infinity or a negative step are refused on every instruction set") {
  const Bytes codes(20 * 64);
  std::vector<float> values(std::size_t{20} * 64);
  forEachTarget([&] {
    for (const bool half : {false, true}) {
      for (std::uint32_t pattern = 0; pattern < 0x10000; pattern += 0x20) {
        const float asMin = half ? plain::fromHalf(static_cast<std::uint16_t>(pattern))
                                 : plain::fromBf16(static_cast<std::uint16_t>(pattern));
        for (const std::size_t place : {0, 16, 19}) {
          std::vector<std::uint32_t> headers(20, 0);
          const auto decodes = [&](std::uint32_t header) {
            headers[place] = header;
            const BlockFormat format{64, 8, half};
            return decodeBlocks(reinterpret_cast<const std::byte*>(headers.data()), codes.data(),
                                20, format, kLargest, values.data());
          };
          REQUIRE(decodes(pattern) == std::isfinite(asMin));
          REQUIRE(decodes(pattern << 16) == (std::isfinite(asMin) && pattern < 0x8000));
        }
      }
    }
  });
}

TEST_CASE("looking up many codes equals looking them up one by one") {
  for (int bits = 1; bits <= 8; ++bits) {
    std::vector<float> table = anyFloats(std::max(std::size_t{1} << bits, kMinTable));
    std::vector<std::uint8_t> codes(1029);
    const RandomKey key = randomKey(9, "kernels-test");
    for (std::size_t j = 0; j < codes.size(); ++j) {
      codes[j] = static_cast<std::uint8_t>(randomBits(key, j) & ((1u << bits) - 1));
    }
    forEachTarget([&] {
      for (const std::size_t count : {0, 1, 7, 8, 15, 16, 17, 64, 1029}) {
        INFO(bits << " bits, " << count);
        std::vector<float> values(count + 1, 7.0f);
        lookUp(codes.data(), count, bits, table.data(), values.data());
        for (std::size_t j = 0; j < count; ++j) {
          REQUIRE(std::bit_cast<std::uint32_t>(values[j]) ==
                  std::bit_cast<std::uint32_t>(table[codes[j]]));
        }
        REQUIRE(values[count] == 7.0f);
      }
    });
  }
}

TEST_CASE("rotations equal those of the scalar kernel on every instruction set") {
  forEachTarget([&] {
    for (const std::size_t size : {32, 64, 128, 256, 512, 1024}) {
      for (const std::vector<float>& sample : blockSamples(7 * size)) {
        for (const std::size_t tiles : {0, 1, 7}) {
          INFO(tiles << " tiles of " << size);
          const std::vector<float> values = exactly(sample, tiles * size);
          const auto rotateBy = [&](auto rotate) {
            return writtenFloats(values.size(), [&](float* out) {
              rotate(values.data(), values.size(), size, out);
            });
          };
          REQUIRE(rotateBy(rotate) == rotateBy(plain::rotate));
          const auto rotateBackBy = [&](auto rotateBack) {
            return writtenFloats(values.size(), [&](float* out) {
              std::copy(values.begin(), values.end(), out);
              rotateBack(out, values.size(), size, 1e30f);
            });
          };
          REQUIRE(rotateBackBy(rotateBack) == rotateBackBy(plain::rotateBack));
        }
      }
    }
  });
}

TEST_CASE("the scalar rotation multiplies by the documented matrix, and rotateBack inverts it") {
  for (const std::size_t size : {32, 64, 1024}) {
    const std::vector<float> values = normal(size);
    std::vector<float> rotated(size);
    plain::rotate(values.data(), size, size, rotated.data());
    for (std::size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < size; ++j) {
        const int flips = std::popcount(i & j) + std::popcount(j & (j >> 1));
        sum += flips % 2 == 0 ? double{values[j]} : -double{values[j]};
      }
      REQUIRE(rotated[i] == Approx(sum / static_cast<double>(size)).margin(1e-6));
    }
    plain::rotateBack(rotated.data(), size, size, kLargest);
    for (std::size_t j = 0; j < size; ++j) REQUIRE(rotated[j] == Approx(values[j]).margin(1e-5));
  }
}

TEST_CASE("a rotated tile contains NaN or infinity exactly if the tile does") {
  constexpr std::size_t kSize = 64;
  forEachTarget([&] {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      for (std::size_t place = kSize; place < 2 * kSize; ++place) {
        std::vector<float> values(3 * kSize, kLargest);
        values[place] = bad;
        std::vector<float> rotated(values.size());
        rotate(values.data(), values.size(), kSize, rotated.data());
        const auto isFinite = [&](std::size_t tile) {
          return rangeOf(rotated.data() + tile * kSize, kSize).finite;
        };
        REQUIRE((isFinite(0) && !isFinite(1) && isFinite(2)));
      }
    }
  });
}

TEST_CASE("products of a matrix with a few vectors equal those of the scalar kernels") {
  // Around the numbers of lanes, and of vectors that share what is read of a row.
  const std::vector<std::pair<std::size_t, std::size_t>> shapes = {{1, 1},  {3, 15},   {5, 16},
                                                                   {2, 33}, {17, 130}, {40, 7}};
  for (const std::size_t rank : {1, 2, 3, 4, 5, 8, 11}) {
    for (const auto& [rows, columns] : shapes) {
      CAPTURE(rank, rows, columns);
      const std::vector<float> a = normal(rows * columns);
      const std::vector<float> overRows = normal(rank * rows, 3);
      const std::vector<float> overColumns = normal(rank * columns, 1e-3f);
      const std::vector<float> any = anyFloats(rank * columns);  // NaN and infinity too
      const Strip strip{a.data(), rows, columns, columns};
      const auto withDots = [&](const auto& function) {
        return writtenFloats(rank * rows, [&](float* out) {
          function(a.data(), rows, columns, overColumns.data(), rank, rows, out);
        });
      };
      const auto withSums = [&](const auto& function) {
        return writtenFloats(rank * columns, [&](float* out) {
          function(strip, overRows.data(), rank, columns, out);
        });
      };
      const auto withOuter = [&](const auto& function) {
        return writtenFloats(rows * columns, [&](float* out) {
          function(overRows.data(), rows, rows, any.data(), columns, rank, 3.0f, out);
        });
      };
      forEachTarget([&] {
        CHECK(withDots(dots) == withDots(plain::dots));
        CHECK(withSums(weightedSums) == withSums(plain::weightedSums));
        CHECK(withOuter(outer) == withOuter(plain::outer));
      });
    }
  }
}
