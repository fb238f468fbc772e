// Inputs of the fuzzing (input.h) to begin with: for every codec, payloads of its own making and
// tensors to encode.
#pragma once

#include "tests/fuzz/input.h"

namespace cleave::fuzz {

struct Seed {
  std::string name;
  Bytes input;
};

std::vector<Seed> seeds();

}  // namespace cleave::fuzz
