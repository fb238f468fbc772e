// cleave-client report: writes or serves a page with charts of runs.

#include <pthread.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/dashboard.h"
#include "client/report/live_report.h"
#include "client/report/report.h"
#include "client/sweep/figure_groups.h"
#include "common/core/durable.h"
#include "common/core/log.h"

namespace cleave {
namespace {

struct ReportCommandOptions {
  std::vector<std::string> runs, serverRuns;
  std::string output;   // file path; empty: report.html (see --help)
  std::string figures;  // folder for SVG and CSV files; empty: writes the page
  std::string serve;    // ADDRESS:PORT; empty: writes the page to a file
  bool anywhere = false;
  bool json = false;
  std::string logLevel = "info";
};

std::string fileOf(const ReportCommandOptions& options, const std::vector<RunPlace>& places) {
  if (!options.output.empty()) return options.output;
  return places.size() == 1 ? places.front().folder + "/report.html" : "report.html";
}

// Serves the page until Ctrl-C or SIGTERM.
int serve(const ReportCommandOptions& options, const std::vector<RunPlace>& places) {
  // The signals are blocked before the server's thread starts: that thread inherits the mask, so
  // only this thread receives the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  LiveReport report(dashboardSettings({"--serve", options.serve}, options.anywhere));
  report.show(places);
  std::cout << report.url() << std::endl;
  int received = 0;
  ::sigwait(&signals, &received);
  return 0;
}

// A group per run, named after its folder; or, of a sweep, per combination of values.
std::vector<FigureGroup> figureGroups(const ReportCommandOptions& options) {
  if (options.runs.size() == 1 && isSweep(options.runs.front())) {
    return sweepFigureGroups(options.runs.front());
  }
  std::vector<FigureGroup> groups;
  for (const std::string& run : options.runs) {
    const RunPlace place = findRun(run, options.serverRuns);
    std::filesystem::path folder = std::filesystem::absolute(place.folder).lexically_normal();
    if (folder.filename() == "client") folder = folder.parent_path();
    const std::string base = folder.filename();
    std::string name = base;
    const auto isTaken = [&](const FigureGroup& group) { return group.label == name; };
    for (int i = 2; std::any_of(groups.begin(), groups.end(), isTaken); ++i) {
      name = base + " (" + std::to_string(i) + ")";
    }
    groups.push_back({name, {{"run", name}}, {place}});
  }
  return groups;
}

int drawFigures(const ReportCommandOptions& options) {
  const std::vector<Figure> figures = makeFigures(figureGroups(options));
  if (figures.empty()) {
    throw UsageError("no-figures", "the runs have no data for a figure yet",
                     "train for at least an epoch first");
  }
  const std::vector<std::string> files = writeFigures(options.figures, figures);
  if (options.json) {
    std::cout << nlohmann::json{{"files", files}}.dump(2) << std::endl;
    return 0;
  }
  for (const std::string& file : files) std::cout << file << "\n";
  return 0;
}

int reportCommand(const ReportCommandOptions& options) {
  startLog("cleave-client", options.logLevel);
  if (!options.figures.empty()) return drawFigures(options);
  std::vector<RunPlace> places;
  for (const std::string& run : options.runs) places.push_back(findRun(run, options.serverRuns));
  if (!options.serve.empty()) return serve(options, places);
  const std::string file = fileOf(options, places);
  checkCanWrite(file);
  nlohmann::json summary = writeReport(places, file);
  summary["file"] = file;
  if (options.json) {
    std::cout << summary.dump(2) << std::endl;
    return 0;
  }
  for (const auto& run : summary.at("runs")) {
    for (const auto& problem : run.at("problems")) {
      std::cerr << run.at("name").get<std::string>() << ": " << problem.get<std::string>() << "\n";
    }
  }
  std::cout << file << std::endl;
  return 0;
}

}  // namespace

HttpSettings dashboardSettings(const Placed& listen, bool anywhere) {
  HttpSettings settings;
  settings.listen = listen;
  settings.option = listen.place + " ";
  settings.anywhere = anywhere;
  settings.anywhereOption = "--anywhere";
  return settings;
}

void addAnywhereOption(CLI::App& command, bool& anywhere, CLI::Option& needed) {
  command
      .add_flag("--anywhere", anywhere,
                "Lets " + needed.get_name() +
                    " listen on an address other than loopback: anyone who can connect sees the "
                    "run's metrics and configuration")
      ->needs(&needed);
}

void addReportCommand(CLI::App& app, std::function<int()>& command) {
  static ReportCommandOptions options;
  CLI::App* report = app.add_subcommand(
      "report", "Writes a page with the charts of a run, or of several side by side");
  report
      ->add_option("RUN", options.runs, "The folders or run ids of the runs, as printed by `train`")
      ->required();
  report
      ->add_option("--output", options.output,
                   "The file to write; default: report.html in the run's folder, or in the current "
                   "folder if there are several runs")
      ->type_name("FILE");
  report
      ->add_option("--server-run", options.serverRuns,
                   "The server's folder of a run, <store>/<identity>/<run id>, if it is not found "
                   "automatically; repeatable")
      ->type_name("DIR")
      ->allow_extra_args(false);
  auto* figures = report
                      ->add_option("--figures", options.figures,
                                   "Instead of the page, writes figures for papers into this "
                                   "folder: SVG files, and the CSV file behind each. RUN may also "
                                   "be the folder of a sweep")
                      ->type_name("DIR")
                      ->excludes("--output");
  auto* serve = report
                    ->add_option("--serve", options.serve,
                                 "Until Ctrl-C, serves the page at this address, such as "
                                 "127.0.0.1:8900, and follows runs in progress")
                    ->type_name("ADDRESS:PORT")
                    ->excludes("--output")
                    ->excludes(figures);
  addAnywhereOption(*report, options.anywhere, *serve);
  report->add_flag("--json", options.json,
                   "Also prints the figures as JSON on stdout, and everything else on stderr");
  report->add_option("--log-level", options.logLevel, "trace, debug, info, warn or error")
      ->default_str("info");
  report->footer(
      "Example:\n  cleave-client report runs/fashion-mnist-20260131-123456-1a2b3c\n  cleave-client "
      "report runs/* --output compared.html\n  cleave-client report runs/RUN --serve "
      "127.0.0.1:8900\n  cleave-client report sweeps/fashion-mnist --figures figures\n\nThe page "
      "needs no network and no other file. "
      "docs/report.md describes the charts.");
  report->callback([&] { command = [&] { return reportCommand(options); }; });
}

}  // namespace cleave
