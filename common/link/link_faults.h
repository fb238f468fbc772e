// Errors that end only the connection: the run continues over the next one. All other errors end
// the run.
#pragma once

#include <string_view>

namespace cleave {

bool isLinkFault(std::string_view code);

}  // namespace cleave
