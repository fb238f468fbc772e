#include "server/store/age.h"

#include <charconv>

#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {

double parseAge(const std::string& option, const std::string& text) {
  constexpr double kMaxDays = 100'000;
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(parsed.ptr, text.data() + text.size());
  if (parsed.ec == std::errc() && number >= 0 && number <= kMaxDays) {
    if (unit == "d") return number;
    if (unit == "h") return number / 24;
  }
  throw UsageError("wrong-use", option + " " + quotedForError(text) + " is not a duration",
                   "give days or hours: 30d, 12h");
}

}  // namespace cleave
