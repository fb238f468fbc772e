// Adds the position in the configuration to errors from tables and grammars, which only have the
// value.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/core/config.h"

namespace cleave {

// Runs `check`. Rethrows its UsageError with the position of the key at `path`.
void checkAt(const Config& config, const std::string& path, const std::function<void()>& check);

// The same with the error's own key if that is the path of a key that the configuration has,
// otherwise with the key that `keys` gives for the error's code. Other errors are rethrown
// unchanged.
void checkAt(const Config& config, const std::map<std::string, std::string>& keys,
             const std::function<void()>& check);

// Throws UsageError if one of these keys is at the top level of the configuration: they belong to
// another program, started by `command` ("cleave-server serve").
void refuseKeysOf(const Config& config, const std::string& command,
                  const std::vector<std::string>& keys);

}  // namespace cleave
