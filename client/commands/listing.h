// The commands that list the valid choices of a configuration, as text or JSON.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/config_table.h"

namespace cleave {

struct ListedItem {
  std::string name;
  std::string description;  // one line
  std::string parameters;   // empty: none
  std::string example;      // a line for the configuration
  // For codecs, if listed: encoded bytes divided by raw bytes, or an upper bound of that.
  std::optional<double> ratio = std::nullopt;
  bool ratioIsExact = false;
};

struct ListingRow {
  std::string_view command;  // "codecs"; also the key in the JSON
  std::string_view summary;  // for --help
  std::string_view about;    // printed above the list
  std::vector<ListedItem> (*items)();
};

std::span<const ListingRow> listingTable();

// All keys of the client's configuration.
std::vector<KeyText> configurationKeys();

// Prints the list on stdout. Returns the exit code.
int listCommand(const ListingRow& row, bool json);

}  // namespace cleave
