#include "client/sweep/grid.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>

#include "common/core/error.h"
#include "common/core/names.h"
#include "common/core/units.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

constexpr std::string_view kLinkPrefix = "link.";
constexpr std::size_t kMaxPoints = 10'000;
constexpr std::size_t kMaxOfName = 80;

struct LinkKey {
  const char* key;
  void (*check)(const Placed& value);
};

constexpr LinkKey kLinkKeys[] = {
    {"rate", [](const Placed& value) { parseRate(value); }},
    {"latency", [](const Placed& value) { parseTime(value); }},
    {"jitter", [](const Placed& value) { parseTime(value); }},
    {"loss", [](const Placed& value) { parseLoss(value); }},
    {"queue", [](const Placed& value) { parseSize(value); }},
    {"burst", [](const Placed& value) { parseSize(value); }},
};

void checkLinkValue(const std::string& option, const std::string& key, const std::string& value) {
  const Placed placed{"--grid " + option, value};
  for (const LinkKey& row : kLinkKeys) {
    for (const char* way : {"", "up.", "down."}) {
      if (key == std::string(kLinkPrefix) + way + row.key) return row.check(placed);
    }
  }
  const std::vector<std::string> known = linkKeys();
  const std::string meant = nearestName(key, known);
  throw UsageError("bad-grid",
                   placed.place + ": the link has no " + quotedForError(key) +
                       (meant.empty() ? "" : "; did you mean " + meant + "?"),
                   fmt::format("give one of {}", fmt::join(known, ", ")));
}

// FNV-1a, because std::hash may give different values in another build.
std::uint32_t hashOf(const std::string& text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// Returns "block-bits-4" for "block:bits=4".
std::string readable(const std::string& value) {
  std::string text;
  for (const char c : value) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_';
    if (fits) {
      text += c;
    } else if (!text.empty() && text.back() != '-') {
      text += '-';
    }
  }
  while (text.ends_with('-')) text.pop_back();
  return text;
}

}  // namespace

bool isRepetition(const std::string& key) { return key == kSeedKey || key == "data.fold"; }

bool isLinkKey(const std::string& key) { return key.starts_with(kLinkPrefix); }

std::string SweepPoint::name() const {
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::string all, name;
  for (const auto& [key, value] : sorted) {
    all += key + "=" + value + "\n";
    name += key.substr(key.rfind('.') + 1) + "-" + readable(value) + "-";
  }
  if (name.size() > kMaxOfName) name = name.substr(0, kMaxOfName) + "-";
  return fmt::format("{}{:08x}", name, hashOf(all));
}

std::string SweepPoint::text() const {
  std::string text;
  for (const auto& [key, value] : values) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  }
  return text;
}

std::string SweepPoint::value(const std::string& key) const {
  for (const auto& [own, value] : values) {
    if (own == key) return value;
  }
  return "";
}

std::vector<std::string> SweepPoint::configOverrides() const {
  std::vector<std::string> overrides;
  for (const auto& [key, value] : values) {
    if (!isLinkKey(key)) overrides.push_back(key + "=" + value);
  }
  return overrides;
}

std::vector<std::string> SweepPoint::linkOverrides() const {
  std::vector<std::string> overrides;
  for (const auto& [key, value] : values) {
    if (isLinkKey(key)) overrides.push_back(key.substr(kLinkPrefix.size()) + "=" + value);
  }
  return overrides;
}

std::vector<SweepAxis> parseGrid(const std::vector<std::string>& options) {
  std::vector<SweepAxis> axes;
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError("bad-grid", "--grid " + option + " is not KEY=VALUE",
                       "write a key's path, '=' and one of its values, such as --grid codec=none; "
                       "repeat --grid for another value");
    }
    const std::string key = option.substr(0, equals);
    const std::string value = option.substr(equals + 1);
    if (isLinkKey(key)) checkLinkValue(option, key, value);
    auto axis = std::find_if(axes.begin(), axes.end(),
                             [&](const SweepAxis& known) { return known.key == key; });
    if (axis == axes.end()) axis = axes.insert(axes.end(), {key, {}});
    if (std::find(axis->values.begin(), axis->values.end(), value) != axis->values.end()) {
      throw UsageError("bad-grid", "--grid " + option + " is given twice", "remove one of them");
    }
    axis->values.push_back(value);
  }
  return axes;
}

std::vector<SweepPoint> expandGrid(const std::vector<SweepAxis>& axes) {
  std::vector<SweepPoint> points(1);
  for (const SweepAxis& axis : axes) {
    if (points.size() * axis.values.size() > kMaxPoints) {
      throw UsageError("bad-grid", fmt::format("the grid has more than {} points", kMaxPoints),
                       "remove values, or split it into several sweeps");
    }
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().values.emplace_back(axis.key, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

std::vector<std::string> linkKeys() {
  std::vector<std::string> keys;
  for (const char* way : {"", "up.", "down."}) {
    for (const LinkKey& row : kLinkKeys) keys.push_back(std::string(kLinkPrefix) + way + row.key);
  }
  return keys;
}

}  // namespace cleave
