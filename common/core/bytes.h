// Views bytes as text, for functions that take text.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace cleave {

// Shares the memory of `bytes`.
inline std::string_view textOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace cleave
