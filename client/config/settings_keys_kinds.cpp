// The keys of lists whose elements have a kind, each with parameters of its own: inserts, defences.
#include <algorithm>
#include <optional>
#include <span>

#include "client/config/settings_keys.h"

namespace cleave::client_keys {
namespace {

std::string typeOf(const ParameterRow& row) {
  return row.isWhole
             ? integerType(static_cast<std::int64_t>(row.min), static_cast<std::int64_t>(row.max))
             : numberType(row.min, row.max);
}

double readParameter(Config& config, const std::string& path, const ParameterRow& row) {
  if (!row.isWhole) return config.number(path, row.min, row.max, row.defaultValue);
  std::optional<std::int64_t> defaultValue;
  if (row.defaultValue) defaultValue = static_cast<std::int64_t>(*row.defaultValue);
  return static_cast<double>(config.integer(path, static_cast<std::int64_t>(row.min),
                                            static_cast<std::int64_t>(row.max), defaultValue));
}

}  // namespace

std::map<std::string, double> readParameters(Config& config, const std::string& item,
                                             std::span<const ParameterRow> rows) {
  std::map<std::string, double> values;
  for (const ParameterRow& row : rows) {
    const std::string name(row.name);
    values[name] = readParameter(config, item + name, row);
  }
  return values;
}

// The rows only document the keys: another row reads their values.
void addParameterKeys(Table& table, const std::string& list,
                      const std::vector<KindParameters>& kinds, bool isSent) {
  struct Parameter {
    ParameterRow row;
    std::string users;  // the kinds that have this row

    std::string preset() const {
      return row.defaultValue ? fmt::format("`{}`", *row.defaultValue) : "required";
    }
    std::string meaning() const { return fmt::format("{}: {}", users, row.meaning); }
  };
  std::vector<std::vector<Parameter>> parameters;  // those of one name, which kinds may not share
  for (const KindParameters& kind : kinds) {
    for (const ParameterRow& row : kind.rows) {
      auto named = std::ranges::find_if(
          parameters, [&](const auto& each) { return each.front().row.name == row.name; });
      if (named == parameters.end()) named = parameters.insert(named, std::vector<Parameter>());
      auto known = std::ranges::find_if(
          *named, [&](const Parameter& each) { return each.row.meaning == row.meaning; });
      if (known == named->end()) known = named->insert(known, {row, ""});
      known->users += fmt::format("{}`{}`", known->users.empty() ? "" : ", ", kind.name);
    }
  }
  for (const std::vector<Parameter>& named : parameters) {
    std::string preset = named.front().preset(), meaning = named.front().meaning();
    for (const Parameter& other : std::span(named).subspan(1)) {
      if (other.preset() != named.front().preset()) {
        preset += fmt::format("; {}: {}", other.users, other.preset());
      }
      meaning += "; " + other.meaning();
    }
    auto& row = table.add(fmt::format("{}.{}", list, named.front().row.name),
                          typeOf(named.front().row), "", preset, meaning, nullptr);
    if (isSent) row.sent();
  }
}

}  // namespace cleave::client_keys
