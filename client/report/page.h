// The template of report pages, made from page/ and dygraphs. CMake generates its source.
#pragma once

#include <string_view>

namespace cleave {

// HTML with one marker @DATA@ for the data.
std::string_view reportTemplate();

}  // namespace cleave
