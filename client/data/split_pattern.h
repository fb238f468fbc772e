// A regular expression of a tokenizer.json, which cuts text into pieces. The file's syntax is
// Oniguruma's; PCRE2 runs it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace cleave {

class SplitPattern {
 public:
  // Throws UsageError "unsupported-tokenizer" for syntax that the two libraries read differently.
  static SplitPattern ofRegex(const std::string& regex);
  static SplitPattern ofText(const std::string& text);  // matches the text itself

  // Passes on the matches and the text between them, in order, without empty pieces. `text` is
  // valid UTF-8. Throws UsageError "data-damaged" if a match needs too many steps. Any thread.
  void split(std::string_view text,
             const std::function<void(std::string_view piece, bool isMatch)>& take) const;

 private:
  struct Compiled;
  explicit SplitPattern(const std::string& pattern, unsigned options);
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace cleave
