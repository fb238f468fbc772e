#include "common/config/config_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

namespace cleave {
namespace {

// Formats a number: "604800", "0.1", "1e6", "1e-6".
std::string numberText(double value) {
  constexpr double kMillion = 1e6;
  const bool isInteger = std::trunc(value) == value && std::abs(value) < 1e15;
  if (isInteger && (value == 0 || std::fmod(value, kMillion) != 0)) {
    return std::to_string(static_cast<std::int64_t>(value));
  }
  // fmt writes 1e+06.
  static const std::regex kExponent("e(-?)\\+?0*");
  return std::regex_replace(fmt::format("{:g}", value), kExponent, "e$1");
}

// Removes the Markdown marks of code and links.
std::string plain(const std::string& markdown) {
  static const std::regex kLink(R"(\[([^\]]*)\]\([^)]*\))");
  std::string text = std::regex_replace(markdown, kLink, "$1");
  std::erase(text, '`');
  return text;
}

const char* markText(KeyMark mark, bool isMarkdown) {
  switch (mark) {
    case KeyMark::sent:
      return isMarkdown ? " fixed, sent |" : "; sent to servers";
    case KeyMark::mayChange:
      return isMarkdown ? " may change |" : "; may change on resume";
    default:
      return isMarkdown ? " fixed |" : "";
  }
}

}  // namespace

std::string integerType(std::int64_t min, std::int64_t max) {
  return fmt::format("integer, {} … {}", min, max);
}

std::string numberType(double min, double max) {
  return fmt::format("number, {} … {}", numberText(min), numberText(max));
}

std::string defaultText(double value) { return fmt::format("`{}`", numberText(value)); }

std::string printKeys(const std::vector<KeyText>& keys, KeyFormat format) {
  const bool areMarked = std::any_of(keys.begin(), keys.end(),
                                     [](const KeyText& key) { return key.mark != KeyMark::fixed; });
  if (format == KeyFormat::json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const KeyText& key : keys) {
      list.push_back({{"section", key.section},
                      {"key", key.name},
                      {"type", plain(key.type)},
                      {"unit", key.unit},
                      {"default", plain(key.defaultValue)},
                      {"meaning", plain(key.meaning)}});
      if (!areMarked) continue;
      list.back()["may_change"] = key.mark == KeyMark::mayChange;
      list.back()["sent"] = key.mark == KeyMark::sent;
    }
    return nlohmann::ordered_json{{"keys", list}}.dump(2) + "\n";
  }
  std::string out;
  std::string section;
  for (const KeyText& key : keys) {
    const bool isFirst = key.section != section;
    section = key.section;
    if (format == KeyFormat::markdown) {
      if (isFirst) {
        out += fmt::format(
            "{}| Key | Type and range | Unit | Default | Meaning |{}\n"
            "|---|---|---|---|---|{}\n",
            out.empty() ? "" : "\n", areMarked ? " Resume |" : "", areMarked ? "---|" : "");
      }
      out += fmt::format("| `{}` | {} | {} | {} | {} |{}\n", key.name, key.type, key.unit,
                         key.defaultValue, key.meaning, areMarked ? markText(key.mark, true) : "");
    } else {
      if (isFirst) out += fmt::format("{}{}\n", out.empty() ? "" : "\n", section);
      out += fmt::format("  {}: {}{}; default: {}{}\n      {}\n", key.name, plain(key.type),
                         key.unit.empty() ? "" : " " + key.unit, plain(key.defaultValue),
                         markText(key.mark, false), plain(key.meaning));
    }
  }
  return out;
}

}  // namespace cleave
