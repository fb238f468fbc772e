// Adds the location in the configuration to errors from tables and grammars, which only have the
// value.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/config/config.h"

namespace cleave {

// Runs `check`. Rethrows its UsageError with the location of the key at `path`.
void checkAt(const Config& config, const std::string& path, const std::function<void()>& check);

// Runs `check`. Adds the location of the error's own key if the configuration has a key with that
// path; otherwise the location of the key that `keys` lists for the error's code. An error with
// neither is rethrown unchanged.
void checkAt(const Config& config, const std::map<std::string, std::string>& keys,
             const std::function<void()>& check);

// Throws UsageError if one of these keys is at the top level of the configuration: they belong to
// another program, started by `command` ("cleave-server serve").
void refuseKeysOf(const Config& config, const std::string& command,
                  const std::vector<std::string>& keys);

}  // namespace cleave
