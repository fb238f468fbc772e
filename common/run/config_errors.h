// Adds the location in the configuration to errors from tables and grammars, which only have the
// value.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/config/config.h"

namespace cleave {

// Runs `check`. Rethrows its UsageError with the location of its key(), if the configuration has
// it; an error without a key() with that of the key at `path`, unless it is empty.
void checkAt(const Config& config, const std::string& path, const std::function<void()>& check);

// Throws UsageError if one of these keys is at the top level of the configuration: they belong to
// another program, started by `command` ("cleave-server serve").
void refuseKeysOf(const Config& config, const std::string& command,
                  const std::vector<std::string>& keys);

}  // namespace cleave
