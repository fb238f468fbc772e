#include "daemon/placed_errors.h"

#include <algorithm>

namespace cleave {
namespace {

UsageError placed(const Config& config, const std::string& path, const UsageError& error) {
  return UsageError(error.code(), config.where(path) + ": " + path + ": " + error.what(),
                    error.fix());
}

// The path of the key in the map at `path` that `error` names as "key=value" or 'key'; `path`
// itself if it names none.
std::string keyNamedBy(const UsageError& error, const Config& config, const std::string& path) {
  const std::string sentence = error.what();
  for (const std::string& key : config.keys(path)) {
    for (const std::string& named : {" " + key + "=", "'" + key + "'"}) {
      if (sentence.find(named) != std::string::npos) return path + "." + key;
    }
  }
  return path;
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
    const auto key = keys.find(error.code());
    if (key == keys.end()) throw;
    throw placed(config, keyNamedBy(error, config, key->second), error);
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
            ", whose configuration this seems to be",
        "give this program one of its own; '" + command + " --config FILE' takes this");
  }
}

}  // namespace cleave
