// A regular expression of a tokenizer.json, which splits text into pieces. The syntax is
// Oniguruma's; it is translated for PCRE2.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace cleave {

class SplitPattern {
 public:
  // Throws UsageError "unsupported-tokenizer" for syntax that means something else in PCRE2.
  static SplitPattern ofRegex(const std::string& regex);
  static SplitPattern ofText(const std::string& text);  // matches the text itself

  // Calls `take` for each match and each text between matches, in order, except for empty pieces.
  // `text` must be valid UTF-8. Throws UsageError "data-damaged" if a match needs too many steps.
  // Any thread.
  void split(std::string_view text,
             const std::function<void(std::string_view piece, bool isMatch)>& take) const;

 private:
  struct Compiled;
  explicit SplitPattern(const std::string& pattern, unsigned options);
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace cleave
