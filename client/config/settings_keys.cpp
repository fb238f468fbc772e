// The table of the client's configuration keys.
#include "client/config/settings_keys.h"

#include <concepts>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/run/config_errors.h"
#include "common/run/experiment_fields.h"

namespace cleave {
namespace {

const ConfigTable<ClientSettings>& table() {
  static const ConfigTable<ClientSettings> kTable = [] {
    ConfigTable<ClientSettings> made;
    for (const auto add :
         {client_keys::addRunAndModel, client_keys::addData, client_keys::addTraining,
          client_keys::addCodecs, client_keys::addDeviceAndLink, client_keys::addRecords,
          client_keys::addPrivacy}) {
      add(made);
    }
    return made;
  }();
  return kTable;
}

// Rows of `table` for a field of each type; those of other types have a row of their own.
void addField(client_keys::Table& table, const ExperimentField& field) {
  const std::string name(field.name);
  const std::string unit(field.unit);
  const auto min = static_cast<std::int64_t>(field.range.min);
  const auto max = static_cast<std::int64_t>(field.range.max);
  std::visit(
      [&]<typename T>(T Experiment::*member) {
        if constexpr (std::same_as<T, bool>) {
          table.boolean(name, member, field.meaning);
        } else if constexpr (std::integral<T>) {
          table.integer(name, unit, min, max, member, field.meaning);
        } else if constexpr (std::floating_point<T>) {
          table.number(name, unit, field.range.min, field.range.max, member, field.meaning);
        } else if constexpr (std::same_as<T, std::string>) {
          table.text(name, field.type, member, field.meaning);
        } else if constexpr (std::same_as<T, Precision>) {
          client_keys::addPrecision(table, name, member, field.meaning);
        }
      },
      field.member);
  client_keys::Table::Row& row = table.row(name).sent();
  if (field.check == nullptr) return;
  row.then([name, check = field.check](Config& config, ClientSettings& settings) {
    checkAt(config, name, [&] { check(settings); });
  });
}

}  // namespace

void client_keys::addFields(Table& table, std::string_view prefix) {
  for (const ExperimentField& field : experimentFields()) {
    if (!field.meaning.empty() && field.name.starts_with(prefix)) addField(table, field);
  }
}

void client_keys::addPrecision(Table& table, const std::string& name, Precision Settings::*field,
                               const std::string& meaning) {
  const std::vector<std::string> names = {"fp32", "bf16", "fp16"};
  table.add(name, "`fp32`, `bf16`, `fp16`", "", "`fp32`", meaning,
            [=](Config& config, Settings& settings) {
              settings.*field = precisionFromName(config.text(name, names.front(), names));
            });
}

std::vector<KeyText> clientKeys() { return table().texts(); }

ClientSettings readClientSettings(Config& config) {
  refuseKeysOf(config, "cleave-server serve", {"listen", "models", "limits", "access", "store"});
  ClientSettings settings = table().read(config);
  settings.resolved = config.resolved();
  const LossSpec& loss = settings.scores.loss;
  if (findLoss(loss.name).target == TargetKind::classes)
    settings.data.keys.ignoredLabel = loss.ignoreIndex;
  return settings;
}

std::map<std::string, std::string> valuesOf(const Config& config, const ClientSettings& settings) {
  std::map<std::string, std::string> values = config.values();
  const auto all = values.extract("codec");
  if (all.empty()) return values;
  for (const auto& [flow, codec] : settings.codecs) values["codec." + flow] = all.mapped();
  return values;
}

}  // namespace cleave
