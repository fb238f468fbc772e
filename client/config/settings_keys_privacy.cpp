// The keys of what the server may learn and do.
#include <algorithm>
#include <string>
#include <vector>

#include "client/config/settings_keys.h"

namespace cleave::client_keys {
namespace {

void readDefences(Config& config, Settings& settings) {
  const std::size_t count = config.items("privacy.defence");
  for (std::size_t n = 0; n < count; ++n) {
    const std::string item = fmt::format("privacy.defence[{}].", n);
    DefenceSpec& defence = settings.defences.emplace_back();
    defence.kind = config.text(item + "kind", std::nullopt, listOf(defenceTable()));
    defence.parameters = readParameters(config, item, findDefence(defence.kind).parameters);
  }
}

void checkKeyFile(Config& config, const Settings& settings) {
  const auto draws = std::ranges::find_if(
      settings.defences, [](const DefenceSpec& each) { return findDefence(each.kind).needsKey; });
  if (draws == settings.defences.end() || !settings.defenceKeyFile.empty()) return;
  throw UsageError("bad-defence",
                   config.where("privacy.defence") + ": '" + draws->kind +
                       "' draws random numbers, which the server must not be able to repeat, so "
                       "they need a key",
                   "make one, (umask 077; openssl rand -hex 32 > privacy.key), and set "
                   "privacy.key_file=privacy.key")
      .about("privacy.key_file");
}

}  // namespace

void addPrivacy(Table& table) {
  std::string kinds;
  std::vector<KindParameters> all;
  for (const DefenceRow& row : defenceTable()) {
    kinds += fmt::format("{}`{}`: {}", kinds.empty() ? "" : "; ", row.name, row.description);
    all.push_back({row.name, row.parameters});
  }
  table.add("privacy.defence.kind", namesOf(defenceTable()), "", "none",
            "`privacy: {defence: {kind: noise, …}}`, or a list of such maps: "
            "[defences](privacy.md#defences) against the server. " +
                kinds,
            readDefences);
  addParameterKeys(table, "privacy.defence", all, false);
  table
      .text("privacy.key_file", "path", &Settings::defenceKeyFile,
            "file with the key of the defences' random numbers, 64 hexadecimal digits, which the "
            "server must not have")
      .then([](Config& config, Settings& s) { checkKeyFile(config, s); });
  table
      .boolean("privacy.detect", field(&Settings::detection, &DetectionSettings::isOn),
               "ends the run if the server [sends other gradients](privacy.md#detection) than the "
               "model's: checks steps at random, of which it computes the server's layers too")
      .mayChange();
  table
      .integer("privacy.detect_every", "steps", 1, kMany,
               field(&Settings::detection, &DetectionSettings::every),
               "average distance of these steps")
      .mayChange();
}

}  // namespace cleave::client_keys
