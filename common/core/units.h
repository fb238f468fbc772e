// Values with units as written in flags and configurations: "200Mbit/s", "20ms", "64KiB", "0.1%".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

using Nanoseconds = std::chrono::nanoseconds;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// A value and its location, for errors: {"--rate", "200Mbit/s"}, {"link.yaml:3: rate", …}.
struct Placed {
  std::string place;
  std::string text;
};

// The parsers throw UsageError for invalid text, with its location, the text, and the expected
// form.
double parseRate(const Placed& value);         // bytes per second; 0 for "unlimited"
Nanoseconds parseTime(const Placed& value);    // at most a minute
Nanoseconds parseMoment(const Placed& value);  // at most a week
std::size_t parseSize(const Placed& value);
double parseLoss(const Placed& value);  // a probability, 0…0.5

std::string rateText(double rate);             // "200 Mbit/s", "unlimited"
std::string durationText(Nanoseconds time);    // "20 ms"
std::string bytesText(double bytes);           // "1.2 GB", "34 MB"; decimal
std::string mebibytesText(std::size_t bytes);  // "512 MiB", rounded up; for limits
std::string clockText(double seconds);         // "1:02:03", "0:07"; for clocks and countdowns
std::string durationText(double seconds);      // "1.83 s", "1:02:03"; for elapsed time
// "1 sample", "3 samples"; `noun` has a regular plural.
std::string countText(std::uint64_t count, std::string_view noun);

}  // namespace cleave
