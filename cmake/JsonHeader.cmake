# nlohmann-json's literals ("{}"_json), which nothing here uses, make g++ instantiate the parser in
# every file that includes the header: with the header precompiled, an empty file takes 1.9 s, and
# 0.5 s without them (g++ 12, -O0). All targets use a copy of the header without them.
get_target_property(folders nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
find_file(CLEAVE_JSON_HEADER nlohmann/json.hpp HINTS ${folders} REQUIRED)
mark_as_advanced(CLEAVE_JSON_HEADER)
file(READ ${CLEAVE_JSON_HEADER} text)
set(last "}  // namespace literals")
string(FIND "${text}" "inline namespace literals" begin)
string(FIND "${text}" "${last}" end)
if(begin GREATER 0 AND end GREATER begin)
  string(LENGTH "${last}" length)
  math(EXPR end "${end} + ${length}")
  string(SUBSTRING "${text}" 0 ${begin} before)
  string(SUBSTRING "${text}" ${end} -1 after)
  file(CONFIGURE OUTPUT include/nlohmann/json.hpp CONTENT "#define JSON_USE_GLOBAL_UDLS 0\n\${before}\${after}")
  target_include_directories(cleave_options SYSTEM BEFORE INTERFACE ${CMAKE_BINARY_DIR}/include)
endif()
