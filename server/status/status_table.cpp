#include "server/status/status_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/core/terminal.h"
#include "common/core/units.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

constexpr std::size_t kGap = 2;  // spaces between columns

std::string bytesOf(const Json& json, const char* key) {
  return bytesText(json.at(key).get<double>());
}

std::string clockOf(const Json& json, const char* key) {
  return clockText(json.at(key).get<double>());
}

const Row kHead = {"session", "identity", "run",        "from", "step",     "epoch",    "samples/s",
                   "up",      "down",     "limited by", "busy", "admitted", "resident", "for"};

// The columns to leave out, in this order, if the terminal is too narrow. Run, step, bottleneck and
// session always stay; `cleave-server sessions end` needs the session.
const Row kLeftOutFirst = {"resident", "admitted", "for",  "busy",      "epoch",
                           "from",     "up",       "down", "samples/s", "identity"};

// Shows "-" for a value that probes and edges do not have, or that a run does not have yet.
Row rowOf(const Json& session) {
  const auto text = [&](const char* key) -> std::string {
    const auto found = session.find(key);
    if (found == session.end()) return "-";
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  const std::string kind = session.at("kind");
  const bool isRun = kind != "probe" && kind != "edge";
  const bool hasPace = session.contains("step");
  const auto rate = [&](const char* key) {
    return hasPace ? bytesOf(session, key) + "/s" : std::string("-");
  };
  std::string step = text("step");
  if (hasPace && session.at("phase") == "eval") step += " (eval)";
  constexpr double kLongSeconds = 5;
  std::string heldBack = text("bottleneck");
  if (hasPace && session.at("idle_seconds").get<double>() > kLongSeconds) {
    heldBack = "idle for " + clockOf(session, "idle_seconds");
  }
  return {text("session"),
          text("identity"),
          kind == "probe"  ? "(a probe of the link)"
          : kind == "edge" ? "(a direct link of " + text("run") + ")"
                           : text("run"),
          text("from"),
          step,
          text("epoch"),
          hasPace ? fmt::format("{:.0f}", session.at("images_per_second").get<double>()) : "-",
          rate("up_bytes_per_second"),
          rate("down_bytes_per_second"),
          heldBack,
          hasPace ? fmt::format("{:.0f} %",
                                100 * session.at("busy_shares").at("server_compute").get<double>())
                  : "-",
          isRun ? bytesOf(session, "memory_bytes") : "-",
          session.contains("resident_bytes") ? bytesOf(session, "resident_bytes") : "-",
          clockOf(session, "seconds")};
}

using Widths = std::vector<std::size_t>;  // by column; 0: left out

std::size_t totalOf(const Widths& widths) {
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width > 0 ? width + kGap : 0;
  return total - std::min(total, kGap);
}

// `columns`: width of the terminal; 0: no limit.
std::string alignedRows(const std::vector<Row>& rows, std::size_t columns) {
  Widths widths(kHead.size());
  for (const Row& row : rows) {
    for (std::size_t j = 0; j < row.size(); ++j) widths[j] = std::max(widths[j], row[j].size());
  }
  std::string leftOut;
  for (const std::string& name : kLeftOutFirst) {
    if (columns == 0 || totalOf(widths) <= columns) break;
    widths[static_cast<std::size_t>(std::find(kHead.begin(), kHead.end(), name) - kHead.begin())] =
        0;
    leftOut += (leftOut.empty() ? "" : ", ") + name;
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (widths[j] > 0) line += fmt::format("{:<{}}", row[j], widths[j] + kGap);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    if (columns > 0) line.resize(std::min(line.size(), columns));
    text += line + "\n";
  }
  return leftOut.empty() ? text : text + wrapped("no room for: " + leftOut + "\n", columns, 2);
}

std::string headOf(const Json& status) {
  const Json& memory = status.at("memory");
  std::string text = fmt::format(
      "{}, process {}, at {}{}, on {}, up for {}{}\n", status.at("software").get<std::string>(),
      status.at("pid").get<int>(), status.at("address").get<std::string>(),
      status.at("tls").get<bool>() ? " with TLS" : "", status.at("device").get<std::string>(),
      clockOf(status, "uptime_seconds"),
      status.at("shutting_down").get<bool>() ? "; shutting down" : "");
  const auto connections = status.at("connections").get<std::size_t>();
  const std::size_t sessions =
      status.at("sessions").size() + status.at("sessions_left_out").get<std::size_t>();
  text += fmt::format("{} of {} sessions, {}; memory: {} of {} admitted, {} resident\n", sessions,
                      status.at("max_sessions").get<std::uint32_t>(),
                      countText(connections, "connection"), bytesOf(memory, "admitted_bytes"),
                      bytesOf(memory, "max_bytes"), bytesOf(memory, "resident_bytes"));
  std::string refused;
  for (const auto& [reason, count] : status.at("refusals").items()) {
    refused += (refused.empty() ? "" : ", ") + count.dump() + " " + reason;
  }
  if (const auto why = status.value("unconfined", std::string()); !why.empty()) {
    text += "models of clients are not confined (models.unconfined): " + why + "\n";
  }
  return text +
         "refused or ended because of a client error: " + (refused.empty() ? "none" : refused) +
         "\n";
}

// "cohort lungs: north (100 samples, 2.00 MB up, 1.00 MB down, late for 3.00 s); waits for west", a
// line per cohort.
std::string cohortsText(const Json& status) {
  struct Cohort {
    std::string members, waitsFor;
  };
  std::map<std::string, Cohort> cohorts;
  for (const Json& session : status.at("sessions")) {
    if (!session.contains("cohort")) continue;
    Cohort& cohort = cohorts[session.at("cohort").get<std::string>()];
    cohort.members += fmt::format(
        "{}{} ({}, {} up, {} down, late for {})", cohort.members.empty() ? "" : ", ",
        session.at("member").get<std::string>(),
        countText(session.at("samples").get<std::size_t>(), "sample"), bytesOf(session, "up_bytes"),
        bytesOf(session, "down_bytes"), durationText(session.at("late_seconds").get<double>()));
    const auto names = session.at("waits_for").get<std::vector<std::string>>();
    cohort.waitsFor = fmt::format("{}", fmt::join(names, ", "));
  }
  std::string text;
  for (const auto& [id, cohort] : cohorts) {
    text += fmt::format("cohort {}: {}{}\n", id, cohort.members,
                        cohort.waitsFor.empty() ? "" : "; waits for " + cohort.waitsFor);
  }
  return text;
}

}  // namespace

std::string sessionsTable(const Json& status, std::size_t columns) {
  const Json& sessions = status.at("sessions");
  if (sessions.empty()) return {};
  std::vector<Row> rows = {kHead};
  for (const Json& session : sessions) rows.push_back(rowOf(session));
  const auto leftOut = status.at("sessions_left_out").get<std::size_t>();
  return alignedRows(rows, columns) +
         (leftOut == 0 ? std::string() : fmt::format("and {} more\n", leftOut));
}

std::string statusTable(const Json& status, std::size_t columns) {
  const std::string sessions = sessionsTable(status, columns);
  return wrapped(headOf(status) + cohortsText(status), columns, 2) +
         (sessions.empty() ? "" : "\n" + sessions);
}

}  // namespace cleave
