// The commands that list the valid choices of a configuration, as text or JSON.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config_table.h"

namespace cleave {

struct ListedItem {
  std::string name;
  std::string description;  // one line
  std::string parameters;   // empty: the choice has no parameters
  std::string example;      // a line of YAML for the configuration
  // Only for codecs in `codec list`: encoded bytes divided by raw bytes, or an upper bound of this
  // ratio.
  std::optional<double> ratio = std::nullopt;
  bool ratioIsExact = false;
};

struct ListingRow {
  std::string_view command;  // such as "codecs"; also the key in the JSON output
  std::string_view summary;  // for --help
  std::string_view about;    // printed above the list
  std::vector<ListedItem> (*items)();
};

std::span<const ListingRow> listingTable();

// All keys of the client's configuration.
std::vector<KeyText> configurationKeys();

// Prints the list to stdout and returns the exit code.
int listCommand(const ListingRow& row, bool json);

}  // namespace cleave
