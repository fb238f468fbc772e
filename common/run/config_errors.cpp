#include "common/run/config_errors.h"

#include <algorithm>

namespace cleave {

void checkAt(const Config& config, const std::string& path, const std::function<void()>& check) {
  try {
    check();
  } catch (const UsageError& error) {
    const bool hasKey = !error.key().empty();
    const std::string& key = hasKey ? error.key() : path;
    const bool isPlaced = hasKey ? config.has(key) : !key.empty();
    if (!isPlaced || !error.location().empty()) throw;
    const std::string location = config.where(key);
    throw UsageError(error, location + ": " + key + ": " + error.what(), error.hint())
        .about(key, location);
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
