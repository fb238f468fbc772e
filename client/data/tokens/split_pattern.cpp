#include "client/data/tokens/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <new>

#include "client/data/files/damage.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

// Unicode's White_Space, for use inside a character class. PCRE2's \s also matches U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::uint32_t kMaxSteps = 100'000'000;

[[noreturn]] void refusePattern(const std::string& regex, const std::string& part) {
  throw UsageError("unsupported-tokenizer",
                   "the tokenizer's pattern '" + printable(regex, 200) + "' has " + part +
                       ", which is not supported",
                   "tokenize in Python and write the ids with cleave_split.save_dataset");
}

// Rewrites Oniguruma's syntax for PCRE2, and refuses syntax that has different meanings in the two.
class PatternTranslator {
 public:
  explicit PatternTranslator(const std::string& regex) : regex_(regex) {}

  std::string translate() {
    while (at_ < regex_.size()) {
      if (inClass_) {
        classPart();
      } else {
        part();
      }
    }
    if (inClass_) refusePattern(regex_, "a class without its ']'");
    return std::move(result_);
  }

 private:
  bool continuesWith(std::string_view text) const {
    return std::string_view(regex_).substr(at_).starts_with(text);
  }
  void copy(std::size_t count) {
    result_ += regex_.substr(at_, count);
    at_ += count;
  }

  void part() {
    if (regex_[at_] == '\\') return escape();
    if (continuesWith("[[:")) refusePattern(regex_, "a POSIX class");
    if (regex_[at_] == '[') {
      inClass_ = true;
      copy(continuesWith("[^") ? 2 : 1);
      if (at_ < regex_.size() && regex_[at_] == ']') refusePattern(regex_, "']' in a class");
      return;
    }
    if (continuesWith("(*")) refusePattern(regex_, "'(*'");
    if (continuesWith("(?")) return group();
    if (continuesWith("{,")) refusePattern(regex_, "'{,'");
    if (continuesWith("}+")) refusePattern(regex_, "'}+'");
    copy(1);
  }

  void group() {
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (continuesWith(known)) return copy(known.size());
    }
    refusePattern(regex_, "'" + regex_.substr(at_, 4) + "'");
  }

  void classPart() {
    if (regex_[at_] == '\\') return escape();
    if (regex_[at_] == '[') refusePattern(regex_, "'[' in a class");
    if (continuesWith("&&")) refusePattern(regex_, "'&&' in a class");
    if (regex_[at_] == ']') inClass_ = false;
    copy(1);
  }

  void escape() {
    if (at_ + 1 == regex_.size()) refusePattern(regex_, "'\\' at its end");
    const char letter = regex_[at_ + 1];
    if (letter == 's' || (letter == 'S' && !inClass_)) {
      result_ += inClass_ ? std::string(kSpaces)
                          : (letter == 's' ? "[" : "[^") + std::string(kSpaces) + "]";
      at_ += 2;
    } else if (letter == 'p' || letter == 'P') {
      const std::size_t end = regex_.find('}', at_);
      if (end == std::string::npos || regex_[at_ + 2] != '{')
        refusePattern(regex_, "a property without braces");
      copy(end + 1 - at_);
    } else if (letter == 'u') {
      const std::string digits = regex_.substr(at_ + 2, 4);
      if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        refusePattern(regex_, "'\\u' without four digits");
      result_ += "\\x{" + digits + "}";
      at_ += 6;
    } else if (std::string_view("rntfdD").find(letter) != std::string_view::npos ||
               std::ispunct(static_cast<unsigned char>(letter)) != 0 || letter == ' ') {
      copy(2);
    } else if (continuesWith("\\x{")) {
      copy(3);
    } else {
      refusePattern(regex_, std::string("'\\") + letter + "'");
    }
  }

  const std::string& regex_;
  std::string result_;
  std::size_t at_ = 0;
  bool inClass_ = false;
};

}  // namespace

struct SplitPattern::Compiled {
  std::string text;
  std::shared_ptr<pcre2_code> code;
  std::shared_ptr<pcre2_match_context> context;
};

SplitPattern::SplitPattern(const std::string& pattern, unsigned options) {
  constexpr std::size_t kMaxPatternBytes = 1 << 16;
  if (pattern.size() > kMaxPatternBytes) refusePattern(pattern, "more than 64 KiB");
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> settings(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!settings) throw std::bad_alloc();
  pcre2_set_newline(settings.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->text = pattern;
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | options, &error, &offset, settings.get()),
                       pcre2_code_free);
  if (!compiled->code) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    refusePattern(pattern, "syntax that PCRE2 refuses at character " + std::to_string(offset) +
                               " (" + reinterpret_cast<const char*>(message.data()) + ")");
  }
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // optional: makes matching faster
  compiled->context.reset(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  if (!compiled->context) throw std::bad_alloc();
  pcre2_set_match_limit(compiled->context.get(), kMaxSteps);
  pcre2_set_heap_limit(compiled->context.get(), 64 << 10);  // in KiB
  compiled_ = std::move(compiled);
}

SplitPattern SplitPattern::ofRegex(const std::string& regex) {
  return SplitPattern(PatternTranslator(regex).translate(),
                      PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

SplitPattern SplitPattern::ofText(const std::string& text) {
  return SplitPattern(text, PCRE2_LITERAL);
}

void SplitPattern::split(std::string_view text,
                         const std::function<void(std::string_view, bool)>& take) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  std::size_t begin = 0;  // start of the text not yet passed to `take`
  for (std::size_t from = 0; from < text.size();) {
    const int found =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    from, PCRE2_NO_UTF_CHECK, match.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw DataError("data-damaged",
                      "the tokenizer's pattern '" + printable(compiled_->text, 200) +
                          "' needs too many steps for a text that begins with '" +
                          printable(text.substr(0, 80)) + "'",
                      "shorten the text, or tokenize in Python and write the ids with "
                      "cleave_split.save_dataset");
    }
    if (ends[0] > begin) take(text.substr(begin, ends[0] - begin), false);
    if (ends[1] > ends[0]) take(text.substr(ends[0], ends[1] - ends[0]), true);
    begin = ends[1];
    from = ends[1];
    if (ends[1] <= ends[0]) {  // an empty match: continue after the next character
      if (from == text.size()) break;
      do ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80);
    }
  }
  if (begin < text.size()) take(text.substr(begin), false);
}

}  // namespace cleave
