// Values with units, as flags and configurations have them: "200Mbit/s", "20ms", "64KiB", "0.1%".
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace cleave {

using Nanoseconds = std::chrono::nanoseconds;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// A value and where it stands, for errors: {"--rate", "200Mbit/s"}, {"link.yaml:3: rate", …}.
struct Placed {
  std::string place;
  std::string text;
};

// Each throws UsageError where the text is no such value: where, what stands there, what must.
double parseRate(const Placed& value);         // bytes a second; 0 for "unlimited"
Nanoseconds parseTime(const Placed& value);    // at most a minute
Nanoseconds parseMoment(const Placed& value);  // at most a week
std::size_t parseSize(const Placed& value);
double parseLoss(const Placed& value);  // a probability, 0…0.5

std::string rateText(double rate);             // "200 Mbit/s", "unlimited"
std::string durationText(Nanoseconds time);    // "20 ms"
std::string bytesText(double bytes);           // "1.2 GB", "34 MB"; decimal
std::string mebibytesText(std::size_t bytes);  // "512 MiB", rounded up: of limits, which are so
std::string clockText(double seconds);         // "1:02:03", "0:07": for what counts up or down
std::string durationText(double seconds);      // "1.83 s", "1:02:03": for what took so long

}  // namespace cleave
