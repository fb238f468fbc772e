// The parts of the table of the client's configuration keys, one file each.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/config/settings.h"
#include "common/config/config_table.h"

namespace cleave::client_keys {

using Settings = ClientSettings;
using Table = ConfigTable<Settings>;

constexpr std::int64_t kMany = std::int64_t{1} << 31;

// Each adds the rows of its subject. The order counts: rows use the settings of earlier ones.
void addRunAndModel(Table& table);
void addData(Table& table);
void addTraining(Table& table);
void addScores(Table& table);  // between the rows of addTraining()
void addCodecs(Table& table);
void addDeviceAndLink(Table& table);
void addRecords(Table& table);
void addPrivacy(Table& table);

// Adds the rows of the experiment's fields whose names begin like this.
void addFields(Table& table, std::string_view prefix);
void addPrecision(Table& table, const std::string& name, Precision Settings::*field,
                  const std::string& meaning);

// The parameters of one kind of a list's elements.
struct KindParameters {
  std::string_view name;
  std::span<const ParameterRow> rows;
};
// The values of the kind's parameters in an element, whose keys begin with `item`.
std::map<std::string, double> readParameters(Config& config, const std::string& item,
                                             std::span<const ParameterRow> rows);
// Adds a row "LIST.PARAMETER" per parameter. `isSent`: KeyMark::sent.
void addParameterKeys(Table& table, const std::string& list,
                      const std::vector<KindParameters>& kinds, bool isSent);

// The field of a row that is a member of a member of the settings, and so on.
template <typename... Members>
auto field(Members... members) {
  return [=](Settings & settings) -> auto& { return (settings.*....*members); };
}

// Returns "`a`, `b`" for rows with the names a and b.
template <typename Rows>
std::string namesOf(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += fmt::format("{}`{}`", names.empty() ? "" : ", ", row.name);
  return names;
}

template <typename Rows>
std::vector<std::string> listOf(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

}  // namespace cleave::client_keys
