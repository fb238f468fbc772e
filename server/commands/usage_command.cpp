// cleave-server usage: what each identity has used of the server.
#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "server/commands/commands.h"
#include "server/config/settings.h"
#include "server/store/age.h"
#include "server/store/disk_share.h"
#include "server/store/store_folders.h"
#include "server/store/usage.h"

namespace cleave {
namespace {

struct UsageOptions {
  CommonOptions common;
  std::string since = "30d";
  std::string identity;  // empty: all
  bool runs = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;

struct IdentityUsage {
  Usage usage;
  std::map<std::string, Usage> runs;
  std::size_t diskBytes = 0;  // now
};

struct UsageReport {
  std::string since;        // as in UsageLine::time
  std::string first;        // time of the oldest line; empty: none
  std::size_t damaged = 0;  // lines that cannot be read
  std::vector<std::pair<std::string, IdentityUsage>> identities;  // most device time first
};

// In the form of UsageLine::time, which sorts by time.
std::string daysAgo(double days) {
  using Seconds = std::chrono::duration<double, std::ratio<86400>>;
  const auto time = std::chrono::system_clock::now() -
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(Seconds(days));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.000Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

UsageReport reportOn(const std::string& store, const UsageOptions& options) {
  UsageReport report;
  report.since = daysAgo(parseAge("--since", options.since));
  std::map<std::string, IdentityUsage> all;
  const auto isMeant = [&](const std::string& identity) {
    return options.identity.empty() || identity == options.identity;
  };
  report.damaged = readUsage(usageFolder(store), [&](const UsageLine& line) {
    if (report.first.empty()) report.first = line.time;
    if (line.time < report.since || !isMeant(line.identity)) return;
    IdentityUsage& identity = all[line.identity];
    identity.usage += line.usage;
    if (options.runs) identity.runs[line.run] += line.usage;
  });
  for (const auto& folder : storedFolders(store)) {
    const std::string name = folder.filename().string();
    if (isMeant(name)) all[name].diskBytes = folderBytes(folder.string());
  }
  report.identities.assign(all.begin(), all.end());
  std::stable_sort(report.identities.begin(), report.identities.end(),
                   [](const auto& a, const auto& b) {
                     return a.second.usage.deviceSeconds > b.second.usage.deviceSeconds;
                   });
  return report;
}

Json toJson(const Usage& usage) {
  return {{"sessions", usage.sessions},
          {"steps", usage.steps},
          {"device_seconds", usage.deviceSeconds},
          {"bytes_up", usage.bytesUp},
          {"bytes_down", usage.bytesDown}};
}

std::string jsonOf(const UsageReport& report, bool withRuns) {
  Json list = Json::array();
  for (const auto& [name, identity] : report.identities) {
    Json json{{"identity", name}};
    json.update(toJson(identity.usage));
    json["disk_bytes"] = identity.diskBytes;
    if (withRuns) json["runs"] = Json::array();
    for (const auto& [run, usage] : identity.runs) {
      Json each{{"run", run}};
      each.update(toJson(usage));
      json["runs"].push_back(std::move(each));
    }
    list.push_back(std::move(json));
  }
  const Json out{{"since", report.since},
                 {"first", report.first.empty() ? Json() : Json(report.first)},
                 {"identities", std::move(list)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string row(const std::string& name, const Usage& usage, const std::string& disk) {
  return fmt::format("{:<44} {:>8} {:>9} {:>12} {:>9} {:>9} {:>9}\n", printable(name),
                     usage.sessions, usage.steps, durationText(usage.deviceSeconds),
                     bytesText(static_cast<double>(usage.bytesUp)),
                     bytesText(static_cast<double>(usage.bytesDown)), disk);
}

std::string textOf(const UsageReport& report) {
  if (report.identities.empty()) return "no usage\n";
  std::string text = fmt::format("{:<44} {:>8} {:>9} {:>12} {:>9} {:>9} {:>9}\n", "identity",
                                 "sessions", "steps", "device time", "up", "down", "disk now");
  for (const auto& [name, identity] : report.identities) {
    text += row(name, identity.usage, bytesText(static_cast<double>(identity.diskBytes)));
    for (const auto& [run, usage] : identity.runs)
      text += row("  " + (run.empty() ? "trials and others" : run), usage, "");
  }
  return text;
}

int usageCommand(const UsageOptions& options) {
  startLog("cleave-server", options.common.logLevel);
  Config config = loadConfig(options.common);
  const UsageReport report = reportOn(readServerSettings(config).store, options);
  if (report.damaged > 0) {
    processLog()->warn("{} of the account of usage cannot be read, and are left out",
                       countText(report.damaged, "line"));
  }
  if (!options.json && report.first > report.since) {
    processLog()->info("the account of usage begins at {}", report.first);
  }
  writeOutput(options.json ? jsonOf(report, options.runs) : textOf(report));
  return 0;
}

}  // namespace

void addUsageCommand(CLI::App& app, std::function<int()>& command) {
  static UsageOptions options;
  CLI::App* usage =
      app.add_subcommand("usage", "Shows what each identity has used: device time, bytes, disk");
  addCommonOptions(*usage, options.common, false);
  usage->add_option("--since", options.since, "How far to look back, such as 30d or 12h")
      ->type_name("TIME")
      ->capture_default_str();
  usage->add_option("--identity", options.identity, "Only this identity");
  usage->add_flag("--runs", options.runs, "Also shows each run");
  usage->add_flag("--json", options.json, "Prints JSON, for programs");
  usage->footer(
      "Example:\n  cleave-server usage --since 30d --config configs/server.yaml\n\nGive the "
      "configuration that the server was started with, because it names the store. The server may "
      "be running: the usage of a run in progress is at most ten minutes old.\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage error.");
  usage->callback([&] { command = [&] { return usageCommand(options); }; });
}

}  // namespace cleave
