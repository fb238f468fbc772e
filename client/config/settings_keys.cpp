// The table of the client's configuration keys.
#include "client/config/settings_keys.h"

#include <string>
#include <utility>
#include <vector>

#include "common/run/config_errors.h"

namespace cleave {
namespace {

const ConfigTable<ClientSettings>& table() {
  static const ConfigTable<ClientSettings> kTable = [] {
    ConfigTable<ClientSettings> made;
    for (const auto add :
         {client_keys::addRunAndModel, client_keys::addData, client_keys::addTraining,
          client_keys::addCodecs, client_keys::addDeviceAndLink, client_keys::addRecords}) {
      add(made);
    }
    return made;
  }();
  return kTable;
}

}  // namespace

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
