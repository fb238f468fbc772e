// The grammar of codec specs, the same in configs, handshakes, CSV and on command lines:
//
//   spec      = name [ ":" parameter *( "," parameter ) ] [ "(" spec ")" ]
//   parameter = key "=" value
//   name, key = lower-case letter *( lower-case letter / digit / "_" )
//   value     = 1*( letter / digit / "." / "-" / "_" )
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave {

struct CodecSpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> parameters;
  std::unique_ptr<CodecSpec> inner;
};

// Throws UsageError that shows where the text stops making sense. Text of more than 256 characters,
// a repeated key, or more than 4 levels are errors.
CodecSpec parseCodecSpec(std::string_view text);
std::string toString(const CodecSpec& spec);
// The fewest digits that read back as the same number, as values of parameters are written.
std::string shortestText(double value);

// Reads the parameters of a codec by name. finish() refuses those that nobody asked for, and names
// the nearest known.
class CodecParameters {
 public:
  explicit CodecParameters(const CodecSpec& spec) : spec_(spec) {}

  // Throws UsageError where the value is no integer in [least, greatest], or is missing (second
  // form).
  int integer(std::string_view key, int least, int greatest, int defaultValue);
  int integer(std::string_view key, int least, int greatest);
  // Throws UsageError where the value is no number in [least, greatest], or is missing.
  double number(std::string_view key, double least, double greatest);
  // The place of the value in `choices`; 0 where the key is missing. Throws UsageError for others.
  std::size_t choice(std::string_view key, std::initializer_list<std::string_view> choices);
  void finish() const;
  // For codecs that may wrap another.
  void finishWrapper() const;

 private:
  const CodecSpec& spec_;
  std::vector<std::string> known_;
};

}  // namespace cleave
