// cleave-client sweep: trains each point of a grid and compares them.

#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "client/commands/commands.h"
#include "client/config/settings.h"
#include "client/run/child.h"
#include "client/run/prepare.h"
#include "client/sweep/point_run.h"
#include "client/sweep/report.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "compression/registry.h"

namespace cleave {
namespace {

struct SweepOptions {
  RunOptions run;
  std::vector<std::string> grid, reference;  // KEY=VALUE
  std::string folder;                        // empty: sweeps/<run.name>
  std::string figures;                       // file path; empty: see --help
  bool dryRun = false;
};

using Json = nlohmann::ordered_json;
using Status = PointResult::Status;

// ---- Planning ----

// The codec that both flows of a cut have. Returns "" if their codecs differ, or if they are
// `auto`, which is resolved only when the point runs.
std::string codecOfCut(const ClientSettings& settings, int cut) {
  std::string spec;
  for (const Flow flow : {activationAt(cut), gradientAt(cut)}) {
    const std::string name = flowName(flow);
    if (settings.autoCodecs.contains(name)) return "";
    const std::string own = settings.codecs.at(name)->spec();
    if (!spec.empty() && own != spec) return "";
    spec = own;
  }
  return spec;
}

// All inserts with their sizes, as in "0 conv channels=20 kernel=4 1 conv channels=320 kernel=1".
std::string insertsOf(const ClientSettings& settings) {
  std::string text;
  std::vector<InsertSpec> inserts = settings.inserts;
  std::ranges::stable_sort(inserts, {}, &InsertSpec::cut);
  for (const InsertSpec& insert : inserts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", insert.cut, insert.kind);
    for (const ParameterRow& row : findInsert(insert.kind).parameters) {
      if (!row.isWhole) continue;  // says how it is trained
      text += fmt::format(" {}={}", row.name, insert.parameters.at(std::string(row.name)));
    }
  }
  return text;
}

std::string cutsOf(const ClientSettings& settings) {
  if (!settings.cutNames.empty()) return fmt::format("{}", fmt::join(settings.cutNames, "-"));
  return settings.cuts.empty() ? "default" : fmt::format("{}", fmt::join(settings.cuts, "-"));
}

Facts factsOf(const ClientSettings& settings) {
  const auto orElse = [](const std::string& known, const std::string& own) {
    return known.empty() ? own : known;
  };
  return {{"data", orElse(settings.knownAs.data, settings.data.format)},
          {"model", orElse(settings.knownAs.model, settings.model.name)},
          {"start", orElse(settings.knownAs.start,
                           settings.weights.file.empty() ? "scratch" : "pretrained")},
          {"cuts", cutsOf(settings)},
          {"insert", insertsOf(settings)},
          {"batch", std::to_string(settings.batch)},
          {"micro_batches", std::to_string(settings.microBatches)},
          {"codec_cut0", codecOfCut(settings, 0)},
          {"codec_cut1", codecOfCut(settings, 1)}};
}

// Errors about a value of the point name --grid, from which it is.
ClientSettings settingsOf(const RunOptions& options, const SweepPoint& point) {
  CommonOptions common = options.common;
  for (const std::string& override : point.configOverrides()) common.overrides.push_back(override);
  try {
    Config config = loadConfig(common);
    return readClientSettings(config);
  } catch (const UsageError& error) {
    std::string sentence = error.what(), location = error.location();
    for (const std::string& value : point.configOverrides()) {
      for (std::string* text : {&sentence, &location}) {
        const std::size_t at = text->find("--set " + value);
        if (at != std::string::npos) text->replace(at, std::string_view("--set").size(), "--grid");
      }
    }
    throw UsageError(error, sentence, error.hint()).about(error.key(), location);
  }
}

// Adds the keys that an earlier version did not have to its configuration, with the values that
// describe what it did.
std::string completed(const std::string& config) {
  try {
    Config stored = parseStoredConfig(config, "config.yaml");
    return readClientSettings(stored).resolved;
  } catch (const Error&) {
    return config;  // it has a key or a value that no longer exists
  }
}

PlannedPoint planPoint(const RunOptions& options, const SweepPoint& point,
                       const ClientSettings& settings) {
  PlannedPoint planned{point,
                       factsOf(settings),
                       settings.device,
                       settings.model.name,
                       settings.resolved,
                       point.linkOverrides(),
                       options.server,
                       settings.data.skip};
  if (planned.server.empty()) planned.server = fmt::format("{}", fmt::join(settings.servers, ","));
  if (!planned.link.empty()) requireOneServer(settings, "link, in a sweep,");
  return planned;
}

struct Sweep {
  std::string folder;
  std::vector<PlannedPoint> points;
  std::vector<double> seconds;  // durations of the points that are done
  SweepReport report;
};

// Reads the published figures to compare with, from the given file. The default is reference.csv
// beside the configuration, if that file exists.
std::vector<PublishedRow> publishedFor(const SweepOptions& options) {
  if (!options.figures.empty()) return readPublished(options.figures);
  const auto beside =
      std::filesystem::path(options.run.common.config).parent_path() / "reference.csv";
  return std::filesystem::exists(beside) ? readPublished(beside.string())
                                         : std::vector<PublishedRow>{};
}

// Rejects --set link.…: only --grid configures the link.
void refuseLinkOverrides(const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides) {
    if (!isLinkKey(override)) continue;
    throw UsageError("bad-grid",
                     "--set " + override + ": the emulated link is not part of the configuration",
                     "pass it as --grid " + override + ", an axis with one value");
  }
}

// Checks all points before the first one runs. Throws UsageError.
Sweep plan(const SweepOptions& options) {
  refuseLinkOverrides(options.run.common.overrides);
  Sweep sweep;
  sweep.folder = options.folder;
  sweep.report.axes = parseGrid(options.grid);
  if (sweep.report.axes.empty()) {
    throw UsageError("no-grid", "--grid is missing",
                     "give at least one KEY=VALUE, such as --grid codec=none --grid codec=bf16");
  }
  for (const SweepPoint& point : expandGrid(sweep.report.axes)) {
    const ClientSettings settings = settingsOf(options.run, point);
    if (sweep.folder.empty()) sweep.folder = "sweeps/" + settings.name;
    sweep.points.push_back(planPoint(options.run, point, settings));
    PointResult result;
    result.point = point;
    result.facts = sweep.points.back().facts;
    if (const auto stored = loadPoint(sweep.folder, sweep.points.back(), completed)) {
      result = stored->result;
      sweep.seconds.push_back(stored->seconds);
    }
    sweep.report.results.push_back(std::move(result));
  }
  sweep.report.published = publishedFor(options);
  setSpeedUps(sweep.report.results, sweep.report.axes, options.reference);
  return sweep;
}

std::size_t countOf(const Sweep& sweep, Status status) {
  return static_cast<std::size_t>(
      std::count_if(sweep.report.results.begin(), sweep.report.results.end(),
                    [&](const PointResult& result) { return result.status == status; }));
}

// ---- Running ----

std::string othersText(const Sweep& sweep) {
  const std::size_t others = countOtherPoints(sweep.folder, sweep.points);
  if (others == 0) return "";
  return fmt::format("{} of another grid {} also in {} and not listed here\n",
                     countText(others, "point"), others == 1 ? "is" : "are", sweep.folder);
}

std::string leftText(const Sweep& sweep) {
  if (sweep.seconds.empty()) return "";
  const double left =
      spreadOf(sweep.seconds).mean * static_cast<double>(countOf(sweep, Status::toDo));
  return left > 0 ? fmt::format("; about {} left", clockText(left)) : "";
}

std::string doneText(const PointResult& result) {
  const MetricValues& metrics = result.measured.metrics;
  std::string text;
  if (metrics.contains("top1")) text += fmt::format(", top-1 {:.2f} %", 100 * metrics.at("top1"));
  if (metrics.contains("metric")) text += fmt::format(", metric {:.4f}", metrics.at("metric"));
  if (metrics.contains("images_per_second")) {
    text += fmt::format(", {:.0f} samples/s", metrics.at("images_per_second"));
  }
  return text;
}

// Returns false if a signal interrupted the sweep.
bool runAll(const SweepOptions& options, Sweep& sweep) {
  const Interrupts interrupts;
  const std::size_t count = sweep.points.size();
  std::cerr << othersText(sweep);
  // The programs are checked once here, not at every point.
  const bool hasLink = std::any_of(sweep.points.begin(), sweep.points.end(),
                                   [](const PlannedPoint& point) { return !point.link.empty(); });
  if (hasLink) programBeside("cleave-link");
  for (std::size_t p = 0; p < count; ++p) {
    PointResult& result = sweep.report.results[p];
    if (result.status == Status::done) continue;
    if (interrupts.count() > 0) return false;
    std::cerr << fmt::format("point {} of {}: {}{}\n", p + 1, count, result.point.text(),
                             leftText(sweep));
    const PointEnd end = runPoint(options.run, sweep.points[p], sweep.folder, interrupts);
    if (end.interrupted && end.stored.result.status != Status::done) return false;
    result = end.stored.result;
    if (result.status == Status::done) {
      sweep.seconds.push_back(end.stored.seconds);
      std::cerr << fmt::format("point {} of {}: done in {}{}\n", p + 1, count,
                               clockText(end.stored.seconds), doneText(result));
    } else {
      std::cerr << fmt::format("point {} of {}: failed: {}\n", p + 1, count, result.failure);
    }
  }
  return true;
}

// ---- Results ----

void finishReport(const SweepOptions& options, Sweep& sweep) {
  SweepReport& report = sweep.report;
  setSpeedUps(report.results, report.axes, options.reference);
  report.groups = groupBySeed(report.results);
  report.compared = compareFigures(report.groups, report.published);
  writeFileDurably(sweep.folder + "/results.csv", resultsCsv(report));
  writeFileDurably(sweep.folder + "/groups.csv", groupsCsv(report));
  writeFileDurably(sweep.folder + "/transfer_sizes.csv", transferSizesCsv(report));
  writeFileDurably(sweep.folder + "/comparison.csv", comparisonCsv(report));
  writeFileDurably(sweep.folder + "/report.html", sweepPage(report, sweep.folder));
}

void printResult(const SweepOptions& options, const Sweep& sweep) {
  if (options.run.json) {
    Json json = {{"folder", sweep.folder}};
    json.update(toJson(sweep.report));
    std::cout << json.dump(2) << std::endl;
    return;
  }
  std::cout << "\n"
            << tableText(sweep.report) << "\nfiles  " << sweep.folder
            << ": report.html, results.csv, groups.csv, transfer_sizes.csv, comparison.csv, and a "
               "run folder for each point\nfigures  cleave-client report "
            << sweep.folder << " --figures figures" << std::endl;
}

int listPoints(const SweepOptions& options, const Sweep& sweep) {
  if (options.run.json) {
    Json json = {{"folder", sweep.folder}, {"points", toJson(sweep.report).at("points")}};
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  std::cout << fmt::format("{} in {}, {} done{}\n", countText(sweep.points.size(), "point"),
                           sweep.folder, countOf(sweep, Status::done), leftText(sweep));
  for (const PointResult& result : sweep.report.results) {
    std::cout << fmt::format("  {:<6}  {}\n", result.status == Status::done ? "done" : "to do",
                             result.point.text());
  }
  std::cout << othersText(sweep) << std::flush;
  return 0;
}

int sweepCommand(const SweepOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  Sweep sweep = plan(options);
  if (options.dryRun) return listPoints(options, sweep);
  const SweepFolder held(sweep.folder);
  const bool finished = runAll(options, sweep);
  finishReport(options, sweep);
  if (!finished) {
    throw RunError(ErrorKind::interrupt, "interrupted",
                   fmt::format("interrupted; {} of {} points are done",
                               countOf(sweep, Status::done), sweep.points.size()),
                   "rerun the same command to resume");
  }
  printResult(options, sweep);
  const std::size_t failed = countOf(sweep, Status::failed);
  if (failed == 0) return 0;
  throw RunError(
      "points-failed", fmt::format("{} of {} points failed", failed, sweep.points.size()),
      fmt::format("see the table and {}/POINT.log, then rerun the same command to retry them",
                  sweep.folder));
}

}  // namespace

void addSweepCommand(CLI::App& app, std::function<int()>& command) {
  static SweepOptions options;
  CLI::App* sweep = app.add_subcommand(
      "sweep", "Trains every combination of the given values, and compares the results");
  addRunOptions(*sweep, options.run);
  sweep->remove_option(sweep->get_option("--run-dir"));
  sweep
      ->add_option(
          "--grid", options.grid,
          "One value of one key; repeat the option for more values and keys. KEY is a "
          "configuration key or a setting of the emulated link: link.rate, link.latency, "
          "link.jitter, link.loss, link.queue, link.burst; for one direction, link.up.rate, "
          "link.down.rate, …")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sweep
      ->add_option(
          "--reference", options.reference,
          "Grid value that is the baseline of the speed-up column; repeatable, once per key")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sweep
      ->add_option("--folder", options.folder,
                   "Folder for the files of the sweep; default: sweeps/<run.name>")
      ->type_name("DIR");
  sweep
      ->add_option("--figures", options.figures,
                   "CSV file of published figures to compare with matching points; default: "
                   "reference.csv in the configuration's folder")
      ->type_name("FILE");
  sweep->add_flag("--dry-run", options.dryRun, "Lists the points without starting anything");
  sweep->footer(
      "Example:\n  cleave-client sweep --config configs/fashion_mnist.yaml --set train.epochs=1 "
      "\\\n"
      "    --grid codec=none --grid codec=block:bits=4 --grid link.rate=100Mbit/s --grid "
      "link.rate=1Gbit/s \\\n    --reference codec=none\n\n"
      "If interrupted, rerun the same command to resume. More: docs/sweep.md.\n\n"
      "Exit codes: 0 done, 1 interrupted or a point failed, 2 usage error.");
  sweep->callback([&] { command = [&] { return sweepCommand(options); }; });
}

}  // namespace cleave
