// Hint for an unknown name: the nearest known name and the list of all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/core/config.h"

namespace cleave {

// Example: "did you mean small_cnn? known: small_cnn, mlp"
inline std::string knownNames(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = nearestName(word, known);
  std::string text = nearest.empty() ? "known:" : "did you mean " + nearest + "? known:";
  for (std::size_t k = 0; k < known.size(); ++k) text += (k > 0 ? ", " : " ") + known[k];
  return text;
}

}  // namespace cleave
