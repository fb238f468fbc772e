# Writes OUTPUT, a C++ source with the report's page. The page is page.html with the stylesheets and
# scripts inserted.
#   cmake -DPAGE=DIR -DDYGRAPHS=DIR -DOUTPUT=FILE -P embed_page.cmake
file(READ ${PAGE}/page.html page)

function(put mark)
  set(all "")
  foreach(file ${ARGN})
    file(READ ${file} text)
    # Removes the URL of the source map, because developer tools would look for the map beside the page.
    string(REGEX REPLACE "(//|/\\*)# sourceMappingURL=[^\n]*" "" text "${text}")
    string(APPEND all "${text}")
  endforeach()
  string(REPLACE "@${mark}@" "${all}" replaced "${page}")
  set(page "${replaced}" PARENT_SCOPE)
endfunction()

put(DYGRAPHS_STYLE ${DYGRAPHS}/dygraph.min.css)
put(DYGRAPHS ${DYGRAPHS}/dygraph.min.js)
put(STYLE ${PAGE}/page.css)
put(SCRIPT ${PAGE}/format.js ${PAGE}/points.js ${PAGE}/panel.js ${PAGE}/charts.js ${PAGE}/tables.js ${PAGE}/evaluation.js ${PAGE}/sweep.js ${PAGE}/page.js)

file(WRITE ${OUTPUT} "// Written by client/report/embed_page.cmake.
#include \"client/report/page.h\"

namespace cleave {

std::string_view reportTemplate() {
  return R\"_page_(${page})_page_\";
}

}  // namespace cleave
")
