// Copies of bytes, for comparisons.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/core/bytes.h"
#include "common/resources/held_bytes.h"

namespace cleave {

inline std::vector<std::byte> copied(const HeldBytes& bytes) {
  return {bytes.span().begin(), bytes.span().end()};
}

inline HeldBytes held(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return std::vector<std::byte>(begin, begin + text.size());
}

// The contents of a file in pieces.
inline HeldBytes joined(const std::vector<HeldBytes>& pieces) {
  std::vector<std::byte> file;
  for (const HeldBytes& piece : pieces) {
    file.insert(file.end(), piece.span().begin(), piece.span().end());
  }
  return file;
}

}  // namespace cleave
