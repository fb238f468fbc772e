#include "common/files/identity.h"

#include <algorithm>

namespace cleave {

bool isClientName(std::string_view name) {
  constexpr std::size_t kMaxBytes = 63;
  const auto isPlain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= kMaxBytes && isPlain(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return isPlain(c) || c == '-'; }) &&
         name != kLocalIdentity && name != kDefaultIdentity;
}

}  // namespace cleave
