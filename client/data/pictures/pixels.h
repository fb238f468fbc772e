// A decoded image.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave {

struct Pixels {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> bytes;  // [height, width, channels]
};

}  // namespace cleave
