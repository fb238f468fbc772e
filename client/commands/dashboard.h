// How `train --dashboard` and `report --serve` listen for HTTP.
#pragma once

#include "common/core/units.h"
#include "common/http/http_settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Option;
}  // namespace CLI

namespace cleave {

// `listen`: the flag and its value.
HttpSettings dashboardSettings(const Placed& listen, bool anywhere);
// Adds --anywhere, which requires the option `needed`.
void addAnywhereOption(CLI::App& command, bool& anywhere, CLI::Option& needed);

}  // namespace cleave
