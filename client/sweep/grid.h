// Expands `cleave-client sweep --grid KEY=VALUE` to every combination of the values of each key.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

inline constexpr const char* kSeedKey = "run.seed";

struct SweepAxis {
  std::string key;                  // "codec" of the configuration, or "link.rate" of the link
  std::vector<std::string> values;  // as given
};

struct SweepPoint {
  std::vector<std::pair<std::string, std::string>> values;  // in the order of the axes

  // Used for folder names: a readable form of the values, and a hash of all of them. It does not
  // depend on the order of the axes.
  std::string name() const;
  // "codec=none link.rate=100Mbit/s"
  std::string text() const;
  // "" if there is no such axis.
  std::string value(const std::string& key) const;
  // "codec=none": overrides for the configuration.
  std::vector<std::string> configOverrides() const;
  // "rate=100Mbit/s": settings for cleave-link; empty: the point uses no link.
  std::vector<std::string> linkOverrides() const;
};

// Whether `key` belongs to the link rather than to the configuration.
bool isLinkKey(const std::string& key);

// Parses "KEY=VALUE" options; a key may occur several times. Throws UsageError: not KEY=VALUE, a
// duplicate value, an unknown key of the link, or an invalid value for one.
std::vector<SweepAxis> parseGrid(const std::vector<std::string>& options);

// The last axis varies fastest. Throws UsageError if there are more than 10,000 points.
std::vector<SweepPoint> expandGrid(const std::vector<SweepAxis>& axes);

// The keys of the link that parseGrid() accepts.
std::vector<std::string> linkKeys();

}  // namespace cleave
