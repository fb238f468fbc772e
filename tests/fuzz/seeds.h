// Initial inputs of a fuzz target. Each target's file (decode.cpp, frame.cpp, …) describes its
// inputs.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace cleave::fuzz {

using Bytes = std::vector<std::byte>;

inline Bytes bytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

// Reports a finding and ends the program.
[[noreturn]] inline void find(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

struct Seed {
  std::string name;
  Bytes input;
};

// Returns the seeds of the fuzz target that the program is linked with.
std::vector<Seed> seeds();

}  // namespace cleave::fuzz
