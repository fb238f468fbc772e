#include "common/config/config_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace cleave {
namespace {

using Kind = YamlNode::Kind;

std::optional<double> parseNumber(const std::string& text) {
  if (text == ".inf") return std::numeric_limits<double>::infinity();
  if (text == "-.inf") return -std::numeric_limits<double>::infinity();
  // from_chars also accepts words such as nan.
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  if (text.find_first_of("0123456789.", first) != first) return std::nullopt;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::string expectedInteger(std::int64_t min, std::int64_t max) {
  using Limits = std::numeric_limits<std::int64_t>;
  if (max != Limits::max()) {
    return "an integer in " + std::to_string(min) + "…" + std::to_string(max);
  }
  return min == Limits::min() ? "an integer" : "an integer of at least " + std::to_string(min);
}

std::string expectedNumber(double min, double max) {
  if (std::isfinite(max) && max < std::numeric_limits<double>::max()) {
    return "a number in " + yamlNumber(min) + "…" + yamlNumber(max);
  }
  return std::isfinite(min) && min > std::numeric_limits<double>::lowest()
             ? "a number of at least " + yamlNumber(min)
             : "a number";
}

std::int64_t toInteger(const YamlNode& node, const std::string& path, std::int64_t min,
                       std::int64_t max) {
  const std::string& text = node.text;
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  // YAML parsers disagree on whether 010 is eight or ten.
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  const bool octal = text.size() > first + 1 && text[first] == '0';
  if (node.kind != Kind::scalar || node.quoted || octal || error != std::errc{} || stop != end ||
      value < min || value > max) {
    const std::string expected = expectedInteger(min, max);
    refuse(node, path, expected,
           "set " + path + " to " + expected +
               ", in digits only: no point, no exponent, no leading zero, no quotes");
  }
  return value;
}

double toNumber(const YamlNode& node, const std::string& path, double min, double max,
                const std::string& orElse) {
  const bool plain = node.kind == Kind::scalar && !node.quoted;
  const std::optional<double> value = plain ? parseNumber(node.text) : std::nullopt;
  if (!value || *value < min || *value > max) {
    const std::string expected = expectedNumber(min, max) + orElse;
    refuse(node, path, expected,
           "set " + path + " to " + expected +
               (value || !orElse.empty() ? "" : ", written as in 0.1 or 1e-3"));
  }
  return *value;
}

bool toBoolean(const YamlNode& node, const std::string& path) {
  const bool plain = node.kind == Kind::scalar && !node.quoted;
  if (!plain || (node.text != "true" && node.text != "false")) {
    refuse(node, path, "true or false", "set " + path + " to true or false, without quotes");
  }
  return node.text == "true";
}

std::string toText(const YamlNode& node, const std::string& path, const std::string& expected) {
  if (!node.quoted) {
    const std::size_t first = std::min(node.written.find_first_not_of(' '), node.written.size());
    const std::string written =
        node.written.substr(first, node.written.find_last_not_of(' ') + 1 - first);
    const bool isNull = node.kind == Kind::nothing && (written == "~" || written == "null");
    if (!written.empty() && !isNull) return written;
  }
  if (node.kind == Kind::map) {
    refuse(node, path, expected,
           "set " + path + " to one value, without keys below it: --set " + path +
               "=VALUE; quote text that begins with a bracket");
  }
  if (node.kind != Kind::scalar) {
    refuse(node, path, expected,
           "write one value after " + path +
               ":, in quotes if it begins with a bracket, ends in ':', or contains ': ' or ' #'");
  }
  return node.text;
}

const std::vector<YamlNode>& toList(const YamlNode& node, const std::string& path,
                                    const std::string& expected) {
  if (node.kind != Kind::list) {
    refuse(node, path, expected,
           "write " + path + " as a list: [a, b]; quote an item that begins with a bracket");
  }
  return node.children;
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case Kind::nothing:
      return "empty";
    case Kind::scalar:
      return (node.quoted ? "the text " : "") + quotedForError(node.text);
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a map";
  }
  return "";
}

void refuse(const YamlNode& node, const std::string& path, const std::string& expected,
            const std::string& hint) {
  throw UsageError("config-value",
                   node.place + ": " + path + " is " + describe(node) + ", but must be " + expected,
                   hint)
      .about(path, node.place);
}

}  // namespace cleave
