#include "client/report/report.h"

#include <string_view>

#include "client/report/page.h"
#include "client/report/report_data.h"
#include "common/core/durable.h"

namespace cleave {
namespace {

// Returns JSON for a script element. It contains no '<', so that no text from a run can close the
// element.
std::string forScript(const nlohmann::json& data) {
  const std::string text = data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string reportPage(const nlohmann::json& data) {
  const std::string_view page = reportTemplate();
  constexpr std::string_view kMark = "@DATA@";
  const std::size_t mark = page.find(kMark);
  return std::string(page.substr(0, mark)) + forScript(data) +
         std::string(page.substr(mark + kMark.size()));
}

nlohmann::json writeReport(const std::vector<RunPlace>& runs, const std::string& file) {
  ReportData report(runs);
  report.read();
  writeFileDurably(file, reportPage(report.page(false)));
  return report.summary();
}

}  // namespace cleave
