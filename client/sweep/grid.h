// Expands the options of `cleave-client sweep --grid KEY=VALUE` to all combinations of values.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

inline constexpr const char* kSeedKey = "run.seed";
// Whether points that differ only in this key are repetitions of one experiment: run.seed, and
// data.fold, which numbers the parts of a cross-validation.
bool isRepetition(const std::string& key);

struct SweepAxis {
  std::string key;  // a configuration key such as "codec", or a key of the link such as "link.rate"
  std::vector<std::string> values;  // in the order of the options
};

struct SweepPoint {
  std::vector<std::pair<std::string, std::string>> values;  // in the order of the axes

  // A name for files and folders: a readable form of the values, and a hash of all of them. It does
  // not depend on the order of the axes.
  std::string name() const;
  // For example "codec=none link.rate=100Mbit/s".
  std::string text() const;
  // The value for `key`; "" if the grid has no such axis.
  std::string value(const std::string& key) const;
  // Overrides for the configuration, such as "codec=none".
  std::vector<std::string> configOverrides() const;
  // Settings for cleave-link, such as "rate=100Mbit/s". Empty if the point uses no emulated link.
  std::vector<std::string> linkOverrides() const;
};

// Whether `key` belongs to the link rather than to the configuration.
bool isLinkKey(const std::string& key);

// Parses "KEY=VALUE" options; a key may occur several times. Throws UsageError if an option is not
// KEY=VALUE or is a duplicate, if a key of the link is unknown, or if its value is invalid.
std::vector<SweepAxis> parseGrid(const std::vector<std::string>& options);

// Returns all points of the grid; the last axis varies fastest. Throws UsageError if there are more
// than 10,000 points.
std::vector<SweepPoint> expandGrid(const std::vector<SweepAxis>& axes);

// The keys of the link that parseGrid() accepts.
std::vector<std::string> linkKeys();

}  // namespace cleave
