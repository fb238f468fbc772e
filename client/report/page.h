// The HTML template of report pages. CMake generates its source file from page/ and dygraphs.
#pragma once

#include <string_view>

namespace cleave {

// The template contains one marker @DATA@ for the data.
std::string_view reportTemplate();

}  // namespace cleave
