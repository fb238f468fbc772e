#include "common/codec/spec.h"
#include "common/core/names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "common/core/error.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxLength = 256;
constexpr int kMaxDepth = 4;
constexpr std::string_view kGrammarAdvice =
    "write name, name:key=value,key=value or name:key=value(spec)";

bool isLowerCase(char c) { return c >= 'a' && c <= 'z'; }
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isNameCharacter(char c) { return isLowerCase(c) || isDigit(c) || c == '_'; }
bool isValueCharacter(char c) {
  return isNameCharacter(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
}

// Specs also come from peers: characters other than printable ASCII must not reach a terminal or a
// log.
std::string inQuotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c >= ' ' && c <= '~' ? c : '?';
  return result + "'";
}

// Recursive descent over the grammar in spec.h; one method per rule.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  CodecSpec whole() {
    CodecSpec result = spec(1);
    if (!atEnd()) fail(result.inner ? "the end" : "':', ',', '(' or the end");
    return result;
  }

 private:
  CodecSpec spec(int depth) {
    if (depth > kMaxDepth) fail("at most " + std::to_string(kMaxDepth) + " levels of codecs");
    CodecSpec result;
    result.name = name("a codec's name");
    if (take(':')) {
      do {
        parameter(result);
      } while (take(','));
    }
    if (take('(')) {
      result.inner = std::make_unique<CodecSpec>(spec(depth + 1));
      if (!take(')')) fail("')'");
    }
    return result;
  }

  void parameter(CodecSpec& result) {
    const std::size_t start = position_;
    std::string key = name("a parameter's name");
    for (const auto& [known, value] : result.parameters) {
      if (known != key) continue;
      position_ = start;
      fail("each key once, not '" + key + "' again");
    }
    if (!take('=')) fail("'=' after '" + key + "'");
    result.parameters.emplace_back(std::move(key), characters(isValueCharacter, "a value"));
  }

  std::string name(const std::string& what) {
    if (atEnd() || !isLowerCase(text_[position_])) fail(what + ", which starts with a-z");
    return characters(isNameCharacter, what);
  }

  std::string characters(bool (*allowed)(char), const std::string& what) {
    const std::size_t start = position_;
    while (!atEnd() && allowed(text_[position_])) ++position_;
    if (position_ == start) fail(what);
    return std::string(text_.substr(start, position_ - start));
  }

  bool take(char c) {
    if (atEnd() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  bool atEnd() const { return position_ == text_.size(); }

  [[noreturn]] void fail(const std::string& expected) const {
    throw UsageError(
        "bad-codec-spec",
        "codec spec " + inQuotes(text_) + ", character " + std::to_string(position_ + 1) +
            (atEnd() ? " (the end)" : " (" + inQuotes(text_.substr(position_, 1)) + ")") +
            ": expected " + expected,
        std::string(kGrammarAdvice));
  }

  const std::string_view text_;
  std::size_t position_ = 0;
};

std::string rangeText(int min, int max) {
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

// The parameter's value, or nullptr.
const std::string* find(const CodecSpec& spec, std::string_view key) {
  const auto found = std::find_if(spec.parameters.begin(), spec.parameters.end(),
                                  [&](const auto& parameter) { return parameter.first == key; });
  return found == spec.parameters.end() ? nullptr : &found->second;
}

UsageError unknownParameter(const CodecSpec& spec, const std::string& name,
                            const std::string& hint) {
  return UsageError("bad-codec-spec", "codec " + spec.name + " has no parameter '" + name + "'",
                    hint);
}

[[noreturn]] void refuseMissing(const CodecSpec& spec, std::string_view key,
                                const std::string& range, const std::string& example) {
  constexpr std::size_t kMinLength = 3;  // shorter names resemble any other
  const std::string usage = "write " + spec.name + ":" + std::string(key) + "=" + example;
  for (const auto& [name, value] : spec.parameters) {
    if (name.size() < kMinLength || nearestName(name, {std::string(key)}).empty()) continue;
    throw unknownParameter(spec, name, "did you mean " + std::string(key) + "? " + usage);
  }
  throw UsageError("bad-codec-spec",
                   "codec " + spec.name + " needs " + std::string(key) + ", " + range, usage);
}

std::optional<int> readInteger(const CodecSpec& spec, std::string_view key, int min, int max) {
  const std::string* const found = find(spec, key);
  if (!found) return std::nullopt;
  const std::string& text = *found;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw UsageError("bad-codec-spec",
                     "codec " + spec.name + ": " + std::string(key) + "=" + text + " is not " +
                         rangeText(min, max),
                     "set " + std::string(key) + " to " + rangeText(min, max));
  }
  return value;
}

}  // namespace

std::string shortestText(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : std::string();
}

CodecSpec parseCodecSpec(std::string_view text) {
  if (text.size() > kMaxLength) {
    throw UsageError("bad-codec-spec",
                     "codec spec " + inQuotes(text.substr(0, 32)) + "… has " +
                         std::to_string(text.size()) + " characters; the maximum is " +
                         std::to_string(kMaxLength),
                     std::string(kGrammarAdvice));
  }
  return Parser(text).whole();
}

std::string toString(const CodecSpec& spec) {
  std::string text = spec.name;
  char separator = ':';
  for (const auto& [key, value] : spec.parameters) {
    text += separator + key + '=' + value;
    separator = ',';
  }
  if (spec.inner) text += '(' + toString(*spec.inner) + ')';
  return text;
}

int CodecParameters::integer(std::string_view key, int min, int max, int defaultValue) {
  known_.emplace_back(key);
  return readInteger(spec_, key, min, max).value_or(defaultValue);
}

int CodecParameters::integer(std::string_view key, int min, int max) {
  known_.emplace_back(key);
  if (const std::optional<int> value = readInteger(spec_, key, min, max)) return *value;
  refuseMissing(spec_, key, rangeText(min, max), std::to_string(max));
}

double CodecParameters::number(std::string_view key, double min, double max, double defaultValue) {
  if (find(spec_, key)) return number(key, min, max);
  known_.emplace_back(key);
  return defaultValue;
}

double CodecParameters::number(std::string_view key, double min, double max) {
  known_.emplace_back(key);
  const std::string range = "a number from " + shortestText(min) + " to " + shortestText(max);
  const std::string* text = find(spec_, key);
  if (!text) refuseMissing(spec_, key, range, shortestText(max));
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() ||
      !(value >= min && value <= max)) {
    throw UsageError(
        "bad-codec-spec",
        "codec " + spec_.name + ": " + std::string(key) + "=" + *text + " is not " + range,
        "set " + std::string(key) + " to " + range);
  }
  return value;
}

std::size_t CodecParameters::choice(std::string_view key, std::span<const std::string_view> choices,
                                    std::size_t defaultChoice) {
  known_.emplace_back(key);
  const std::string* const text = find(spec_, key);
  if (!text) return defaultChoice;
  const auto chosen = std::find(choices.begin(), choices.end(), *text);
  if (chosen != choices.end()) return static_cast<std::size_t>(chosen - choices.begin());
  const std::vector<std::string> names(choices.begin(), choices.end());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  throw UsageError(
      "bad-codec-spec",
      "codec " + spec_.name + ": " + std::string(key) + "=" + *text + " is not one of " + list,
      knownNames(*text, names));
}

void CodecParameters::finish() const {
  for (const auto& [key, value] : spec_.parameters) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    throw unknownParameter(
        spec_, key,
        known_.empty() ? "remove it: this codec has no parameters" : knownNames(key, known_));
  }
  if (spec_.inner && !wraps_) {
    throw UsageError("bad-codec-spec",
                     "codec " + spec_.name + " cannot wrap '" + toString(*spec_.inner) + "'",
                     "leave out the parentheses");
  }
}

}  // namespace cleave
