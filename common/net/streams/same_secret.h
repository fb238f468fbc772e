// Compares secrets.
#pragma once

#include <openssl/crypto.h>

#include <string_view>

namespace cleave {

// Takes the same time for all texts of a size, so that a peer cannot find a secret byte by byte.
inline bool isSameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace cleave
