// The page that reports are made of, from page/ and dygraphs; CMake writes its source.
#pragma once

#include <string_view>

namespace cleave {

// HTML with the mark @DATA@ once, where the data go.
std::string_view reportTemplate();

}  // namespace cleave
