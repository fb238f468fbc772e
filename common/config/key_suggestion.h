// Suggestions for keys of a configuration that do not exist.
#pragma once

#include <string>
#include <vector>

namespace cleave {

// The candidate that `typed` is most likely meant to be, because of typing errors, separators, or
// words and sections that are missing or too many; otherwise empty. Names are compared part by part
// and word by word, because long keys with different meanings may differ in a few letters only: no
// typing error turns "timeout_seconds" into "retry_seconds".
std::string nearestKey(const std::string& typed, const std::vector<std::string>& candidates);

}  // namespace cleave
