#include "common/core/random.h"

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace cleave {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Philox4x32-10; constants from the paper.
Words philox(RandomKey key, std::uint64_t counter) {
  Words x = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key.low,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key.high,
         static_cast<std::uint32_t>(product0)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return x;
}

// The finaliser of MurmurHash3 (public domain): every input bit affects the whole word.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Calls use(j, word) for each j < n, computing four words at a time.
template <typename Use>
void forEachWord(RandomKey key, std::size_t n, const Use& use) {
  std::size_t j = 0;
  for (std::uint64_t block = 0; j < n; ++block) {
    for (const std::uint32_t word : philox(key, block)) {
      if (j == n) break;
      use(j++, word);
    }
  }
}

}  // namespace

RandomKey randomKey(std::uint64_t seed, std::string_view name,
                    std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t hash = mix(seed + 0x9E3779B97F4A7C15ULL);
  for (const char c : name) hash = mix(hash * 31 + static_cast<unsigned char>(c));
  hash = mix(hash ^ name.size());
  for (const std::uint64_t number : numbers) hash = mix(hash * 0x9E3779B97F4A7C15ULL + number);
  return {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)};
}

std::uint64_t randomBits(RandomKey key, std::uint64_t counter) {
  const Words words = philox(key, counter);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

void fillUniform(RandomKey key, std::span<float> out) {
  forEachWord(key, out.size(), [&](std::size_t j, std::uint32_t word) { out[j] = uniform(word); });
}

void fillNormal(RandomKey key, std::span<float> out) {
  for (std::size_t j = 0; j < out.size(); j += 4) {
    const Words words = philox(key, j / 4);
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      // 1 - u is in (0, 1], which keeps the logarithm finite.
      const double radius = std::sqrt(-2.0 * std::log(1.0 - double{uniform(words[pair])}));
      const double angle = 2.0 * std::numbers::pi * double{uniform(words[pair + 1])};
      if (j + pair < out.size()) out[j + pair] = static_cast<float>(radius * std::cos(angle));
      if (j + pair + 1 < out.size())
        out[j + pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
}

void fillDropoutMask(RandomKey key, float p, std::span<float> out) {
  const float kept = 1.0f / (1.0f - p);
  forEachWord(key, out.size(),
              [&](std::size_t j, std::uint32_t word) { out[j] = uniform(word) < p ? 0.0f : kept; });
}

std::vector<std::uint32_t> randomPermutation(RandomKey key, std::uint32_t n) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t last = n; last > 1; --last) {
    // The bias of the modulus is below 2^-32.
    std::swap(order[last - 1], order[randomBits(key, last) % last]);
  }
  return order;
}

}  // namespace cleave
