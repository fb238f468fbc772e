// The grammar of codec specs, the same in configs, handshakes, CSV and on command lines:
//
//   spec      = name [ ":" parameter *( "," parameter ) ] [ "(" spec ")" ]
//   parameter = key "=" value
//   name, key = lower-case letter *( lower-case letter / digit / "_" )
//   value     = 1*( letter / digit / "." / "-" / "_" )
#pragma once

#include <cstddef>
#include <memory>
#include <span>
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

// Throws UsageError that shows where the text becomes invalid. Also rejects more than 256
// characters, repeated keys, and more than 4 levels of codecs.
CodecSpec parseCodecSpec(std::string_view text);
std::string toString(const CodecSpec& spec);
// The shortest text that parses to the same number. Specs write their numbers in this form.
std::string shortestText(double value);

// Reads a codec's parameters by name. finish() rejects any that were not read, and gives the
// nearest known name.
class CodecParameters {
 public:
  explicit CodecParameters(const CodecSpec& spec) : spec_(spec) {}

  // Throws UsageError if the value is not an integer in [min, max]. Without a default, the
  // parameter is required.
  int integer(std::string_view key, int min, int max, int defaultValue);
  int integer(std::string_view key, int min, int max);
  // The index of the value in `choices`. Throws UsageError if it is not among them.
  std::size_t choice(std::string_view key, std::span<const std::string_view> choices,
                     std::size_t defaultChoice);
  // Throws UsageError if the value is not a number in [min, max]. Without a default, the parameter
  // is required.
  double number(std::string_view key, double min, double max, double defaultValue);
  double number(std::string_view key, double min, double max);
  // For codecs that may wrap another one: CodecSpec::inner.
  void mayWrap() { wraps_ = true; }
  void finish() const;

 private:
  const CodecSpec& spec_;
  std::vector<std::string> known_;
  bool wraps_ = false;
};

}  // namespace cleave
