// Inputs that a target's fuzzing begins with. Every target's file (decode.cpp, frame.cpp, …) says
// what its inputs mean.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cleave::fuzz {

using Bytes = std::vector<std::byte>;

struct Seed {
  std::string name;
  Bytes input;
};

// Of the target that the program is linked with.
std::vector<Seed> seeds();

}  // namespace cleave::fuzz
