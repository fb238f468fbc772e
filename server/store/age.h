#pragma once

#include <string>

namespace cleave {

// Parses a time in days or hours, such as "30d" or "12h". Returns days. Throws UsageError
// "wrong-use".
double parseAge(const std::string& option, const std::string& text);

}  // namespace cleave
