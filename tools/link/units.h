// Values with units, as flags and configuration have them: "200Mbit/s", "20ms", "64KiB", "0.1%".
#pragma once

#include <string>

#include "tools/link/shaper.h"

namespace cleave::link {

// A value and where it stands, for errors: {"--rate", "200Mbit/s"}, {"link.yaml:3: rate", …}.
struct Placed {
  std::string place;
  std::string text;
};

// Each throws UsageError where the text is no such value: where, what stands there, what must.
double parseRate(const Placed& value);  // bytes a second; 0 for "unlimited"
Time parseTime(const Placed& value);    // at most a minute
Time parseMoment(const Placed& value);  // at most a week
std::size_t parseSize(const Placed& value);
double parseLoss(const Placed& value);  // a probability, 0…0.5

std::string rateText(double rate);   // "200 Mbit/s", "unlimited"
std::string timeText(Time time);     // "20 ms"
std::string sizeText(double bytes);  // "1.5 MB"

}  // namespace cleave::link
