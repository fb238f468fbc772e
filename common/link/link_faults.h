// Errors that end a connection and not the run: the run continues over the next connection. All
// other errors end the run.
#pragma once

#include <string_view>

namespace cleave {

bool isLinkFault(std::string_view code);

}  // namespace cleave
