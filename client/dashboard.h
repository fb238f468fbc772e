// How `train --dashboard` and `report --serve` listen.
#pragma once

#include "common/core/units.h"
#include "common/http/http_settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): its own
class App;
class Option;
}  // namespace CLI

namespace cleave {

// `listen`: the flag, and what was given for it.
HttpSettings dashboardSettings(const Placed& listen, bool anywhere);
// Adds --anywhere, which `needed` gives a meaning.
void addAnywhereOption(CLI::App& command, bool& anywhere, CLI::Option& needed);

}  // namespace cleave
