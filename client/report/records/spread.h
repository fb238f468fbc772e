// Mean and standard deviation of a figure over runs that differ only in their seed or fold.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cleave {

struct Spread {
  double mean = 0;
  std::optional<double> stddev;  // sample std (n - 1); empty for a single value
};
// `values` must not be empty.
Spread spreadOf(const std::vector<double>& values);

// "81.86 ± 0.28": the std rounded to two significant digits, and the mean to the same place, with
// at most four significant digits. A std that rounds to 0 there is "± 0". Without a std, the mean
// has `digits` digits after the decimal point.
std::string spreadText(const Spread& spread, int digits);

}  // namespace cleave
