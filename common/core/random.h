// Counter-based random numbers: every draw is a pure function of (key, counter), so results do not
// depend on the order of draws, and a replay repeats them. Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace cleave {

struct RandomKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

// The key of a named stream, such as (seed, "stem.weight"), or of a numbered one, such as (seed,
// "dropout1", {step, i}).
RandomKey randomKey(std::uint64_t seed, std::string_view name,
                    std::initializer_list<std::uint64_t> numbers = {});

// 64 random bits for `counter`.
std::uint64_t randomBits(RandomKey key, std::uint64_t counter);

// Element j is a function of (key, j) alone. Uniform: in [0, 1) with 24 bits. Normal: Box-Muller,
// mean 0, std 1.
void fillUniform(RandomKey key, std::span<float> out);
void fillNormal(RandomKey key, std::span<float> out);
// out[j] = 0 with probability p, else 1 / (1 - p). Requires 0 <= p < 1.
void fillDropoutMask(RandomKey key, float p, std::span<float> out);

// A permutation of 0…n-1 (Fisher-Yates).
std::vector<std::uint32_t> randomPermutation(RandomKey key, std::uint32_t n);

}  // namespace cleave
