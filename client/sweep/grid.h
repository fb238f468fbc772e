// What `cleave-client sweep --grid KEY=VALUE` asks for: every combination of the values that were
// given for each key.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

inline constexpr const char* kSeedKey = "run.seed";

struct GridAxis {
  std::string key;  // of the configuration, such as "codec", or of the link, such as "link.rate"
  std::vector<std::string> values;  // as given
};

struct GridPoint {
  std::vector<std::pair<std::string, std::string>> values;  // key and value, in the axes' order

  // Folders are called so: what can be read of the values, and a hash of them all. The same values
  // have the same name whatever the order of the axes.
  std::string name() const;
  // "codec=none link.rate=100Mbit/s"
  std::string text() const;
  // "" where there is no such axis.
  std::string value(const std::string& key) const;
  // "codec=none": what replaces values of the configuration.
  std::vector<std::string> configOverrides() const;
  // "rate=100Mbit/s": the configuration of cleave-link; empty: no link stands between.
  std::vector<std::string> linkOverrides() const;
};

// Whether `key` is of the link that is put between, and not of the configuration.
bool isLinkKey(const std::string& key);

// From "KEY=VALUE", a key again for each of its values. Throws UsageError: not KEY=VALUE, a value
// twice, a key of the link that is none, or a value that does not fit it.
std::vector<GridAxis> parseGrid(const std::vector<std::string>& options);

// The last axis varies fastest. Throws UsageError where there are more than 10,000 points.
std::vector<GridPoint> expandGrid(const std::vector<GridAxis>& axes);

// Keys that parseGrid() takes for the link.
std::vector<std::string> linkKeys();

}  // namespace cleave
