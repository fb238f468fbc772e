// Errors of tables and grammars know the value alone; a user needs its place in the configuration
// too.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/core/config.h"

namespace cleave {

// Runs `check`, and throws its UsageError again with the place of the key at `path`.
void checkAt(const Config& config, const std::string& path, const std::function<void()>& check);

// The same with the key that `keys` has for the error's code; errors of other codes pass as they
// are.
void checkAt(const Config& config, const std::map<std::string, std::string>& keys,
             const std::function<void()>& check);

// Throws UsageError where the configuration has one of these keys at its top: they are of another
// program's, which `command` runs ("cleave-server serve").
void refuseKeysOf(const Config& config, const std::string& command,
                  const std::vector<std::string>& keys);

}  // namespace cleave
