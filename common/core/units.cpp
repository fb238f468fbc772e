#include "common/core/units.h"
#include "common/core/names.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 4> kRates = {
    {{"kbit/s", 125.0}, {"Mbit/s", 125e3}, {"Gbit/s", 125e6}, {"MB/s", 1e6}}};
constexpr std::array<Unit, 3> kTimes = {{{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}};
constexpr std::array<Unit, 6> kSizes = {
    {{"B", 1.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"KiB", 1024.0}, {"MiB", 1048576.0}}};
constexpr std::array<Unit, 2> kShares = {{{"", 1.0}, {"%", 0.01}}};

constexpr double kMinRate = 125;     // 1 kbit/s
constexpr double kMaxRate = 12.5e9;  // 100 Gbit/s
constexpr double kMaxSize = 1e9;     // bytes
constexpr double kMinute = 60;
constexpr double kWeek = 7 * 86400.0;

struct Quantity {
  std::string_view what;      // "a rate"
  std::string_view examples;  // "10Mbit/s"
  std::span<const Unit> units;
  double min;
  double max;
  std::string_view range;  // "1kbit/s to 100Gbit/s, or unlimited"
};

[[noreturn]] void refuse(const Placed& value, const Quantity& quantity, const std::string& why) {
  throw UsageError("bad-value",
                   fmt::format("{}: {} is not {}: {}", value.place, quotedForError(value.text),
                               quantity.what, why),
                   fmt::format("write a number and its unit, such as {}, in the range {}",
                               quantity.examples, quantity.range));
}

std::string unitsText(std::span<const Unit> units, std::string_view found) {
  std::vector<std::string> names;
  std::string list;
  for (const Unit& unit : units) {
    if (unit.name.empty()) continue;
    names.emplace_back(unit.name);
    list += (list.empty() ? "" : ", ") + std::string(unit.name);
  }
  const std::string meant = nearestName(found, names);
  return list + (meant.empty() ? "" : "; did you mean " + meant + "?");
}

// Returns the value in the base unit. Plain decimals only: no sign, no exponent, no nan.
double parse(const Placed& value, const Quantity& quantity) {
  const std::string& text = value.text;
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + digits, number, std::chars_format::fixed);
  if (error != std::errc{} || stop != text.data() + digits) {
    refuse(value, quantity, "it does not begin with a number");
  }
  const std::size_t begin = std::min(text.find_first_not_of(' ', digits), text.size());
  const std::string_view name = std::string_view(text).substr(begin);
  for (const Unit& unit : quantity.units) {
    if (unit.name != name && !(name.empty() && number == 0)) continue;
    const double base = number * unit.factor;
    if (base < quantity.min || base > quantity.max) {
      refuse(value, quantity, "it is out of range");
    }
    return base;
  }
  refuse(value, quantity,
         name.empty() ? "its unit is missing, one of " + unitsText(quantity.units, name)
                      : quotedForError(name) + " is not one of the units " +
                            unitsText(quantity.units, name));
}

Nanoseconds toTime(double seconds) { return Nanoseconds(std::llround(seconds * 1e9)); }

std::string number(double value) { return fmt::format("{:.4g}", value); }

}  // namespace

double parseRate(const Placed& value) {
  if (value.text == "unlimited") return 0;
  return parse(value, {"a rate", "200Mbit/s", kRates, kMinRate, kMaxRate,
                       "1kbit/s to 100Gbit/s, or the word unlimited"});
}

Nanoseconds parseTime(const Placed& value) {
  return toTime(parse(value, {"a time", "20ms or 500us", kTimes, 0, kMinute, "0 to 60s"}));
}

Nanoseconds parseMoment(const Placed& value) {
  return toTime(parse(value, {"a time", "5s", kTimes, 0, kWeek, "0 to 604800s"}));
}

std::size_t parseSize(const Placed& value) {
  return static_cast<std::size_t>(
      parse(value, {"a size", "64KiB or 10MB", kSizes, 0, kMaxSize, "0 to 1GB"}));
}

double parseLoss(const Placed& value) {
  return parse(value, {"a share of lost packets", "0.001 or 0.1%", kShares, 0, 0.5, "0 to 0.5"});
}

std::string rateText(double rate) {
  if (rate == 0) return "unlimited";
  const double bits = 8 * rate;
  if (bits >= 1e9) return number(bits / 1e9) + " Gbit/s";
  if (bits >= 1e6) return number(bits / 1e6) + " Mbit/s";
  return number(bits / 1e3) + " kbit/s";
}

std::string durationText(Nanoseconds time) {
  const double value = std::chrono::duration<double>(time).count();
  if (value >= 1) return number(value) + " s";
  return value >= 1e-3 ? number(value * 1e3) + " ms" : number(value * 1e6) + " us";
}

std::string clockText(double seconds) {
  const auto whole = std::llround(std::max(0.0, seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string durationText(double seconds) {
  return seconds < 59.95 ? fmt::format("{:.{}f} s", seconds, seconds < 9.995 ? 2 : 1)
                         : clockText(seconds);
}

std::string countText(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string mebibytesText(std::size_t bytes) {
  return fmt::format("{} MiB", (bytes + kMiB - 1) / kMiB);
}

std::string bytesText(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.5 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes,
                     unit == 0 || bytes >= 99.5 ? 0
                     : bytes >= 9.95            ? 1
                                                : 2,
                     units[unit]);
}

}  // namespace cleave
