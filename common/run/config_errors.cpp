#include "common/run/config_errors.h"

#include <algorithm>

namespace cleave {
namespace {

UsageError placed(const Config& config, const std::string& path, const UsageError& error) {
  const std::string location = config.where(path);
  return UsageError(error, location + ": " + path + ": " + error.what(), error.hint())
      .about(path, location);
}

}  // namespace

void checkAt(const Config& config, const std::string& path, const std::function<void()>& check) {
  try {
    check();
  } catch (const UsageError& error) {
    throw placed(config, path, error);
  }
}

void checkAt(const Config& config, const std::map<std::string, std::string>& keys,
             const std::function<void()>& check) {
  try {
    check();
  } catch (const UsageError& error) {
    const bool isPath = error.key().find('.') != std::string::npos;
    if (isPath && error.location().empty() && config.has(error.key())) {
      throw placed(config, error.key(), error);
    }
    const auto key = keys.find(error.code());
    if (key == keys.end()) throw;
    // The error may concern a key of the map at that path.
    const std::string inside = key->second + "." + error.key();
    const bool isInside = !error.key().empty() && config.has(inside);
    throw placed(config, isInside ? inside : key->second, error);
  }
}

void refuseKeysOf(const Config& config, const std::string& command,
                  const std::vector<std::string>& keys) {
  const std::vector<std::string> present = config.keys("");
  for (const std::string& key : keys) {
    if (std::find(present.begin(), present.end(), key) == present.end()) continue;
    throw UsageError(
        "bad-config",
        config.where(key) + ": '" + key + "' is a key of " + command +
            "; this seems to be its configuration",
        "pass this program its own configuration; this one is for '" + command + " --config FILE'");
  }
}

}  // namespace cleave
