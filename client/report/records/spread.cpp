#include "client/report/records/spread.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace cleave {
namespace {

constexpr int kStdDigits = 2, kMeanDigits = 4;  // significant

// The number of digits after the decimal point with which `value` has `significant` digits;
// negative if it is rounded before the point.
int decimalsFor(double value, int significant) {
  return significant - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
}

std::string rounded(double value, int decimals) {
  if (decimals >= 0) return fmt::format("{:.{}f}", value, decimals);
  const double unit = std::pow(10.0, -decimals);
  return fmt::format("{:.0f}", std::round(value / unit) * unit);
}

}  // namespace

Spread spreadOf(const std::vector<double>& values) {
  const double count = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value / count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.stddev = std::sqrt(squares / (count - 1));
  return spread;
}

std::string spreadText(const Spread& spread, int digits) {
  if (!spread.stddev) return fmt::format("{:.{}f}", spread.mean, digits);
  const double deviation = *spread.stddev;
  if (deviation <= 0) return fmt::format("{:.{}f} ± 0", spread.mean, digits);
  int decimals = decimalsFor(deviation, kStdDigits);
  // 0.0998 with two digits is 0.10.
  decimals = decimalsFor(std::round(deviation * std::pow(10.0, decimals)), kStdDigits) + decimals;
  if (spread.mean != 0) decimals = std::min(decimals, decimalsFor(spread.mean, kMeanDigits));
  const bool isZero = deviation < 0.5 * std::pow(10.0, -decimals);
  if (isZero) return fmt::format("{:.{}f} ± 0", spread.mean, digits);
  return rounded(spread.mean, decimals) + " ± " + rounded(deviation, decimals);
}

}  // namespace cleave
