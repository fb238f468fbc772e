// The HTTP settings of `train --dashboard` and `report --serve`.
#pragma once

#include "common/core/units.h"
#include "common/http/http_settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Option;
}  // namespace CLI

namespace cleave {

// `listen`: the value of the flag, with the flag's name for error messages.
HttpSettings dashboardSettings(const Placed& listen, bool anywhere);
// Adds the flag --anywhere, which is allowed only together with the option `needed`.
void addAnywhereOption(CLI::App& command, bool& anywhere, CLI::Option& needed);

}  // namespace cleave
