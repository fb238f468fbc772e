// cleave-client data check: reads every sample, and lists the damaged ones.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/data/check.h"
#include "client/train/samples_progress.h"
#include "client/train/settings.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/record.h"
#include "common/core/terminal.h"
#include "common/core/units.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

// Damage that is found when a file is opened is a result of this command, not a wrong use of it.
Datasets openForCheck(DataSettings settings) {
  settings.skip = 0;  // damaged samples are counted, not replaced
  try {
    return openDatasets(settings);
  } catch (const UsageError& error) {
    constexpr std::array<std::string_view, 4> kDamage = {"data-damaged", "sample-damaged",
                                                         "missing-value", "bad-label"};
    if (std::find(kDamage.begin(), kDamage.end(), error.code()) == kDamage.end()) throw;
    throw RunError(error.code(), error.what(), error.hint());
  }
}

std::string csvOf(const Json& damaged) {
  std::string text = "name,split,sample,reason\n";
  for (const Json& each : damaged) {
    text += fmt::format("{},{},{},{}\n", formatCell(each["name"].get<std::string>()),
                        each["split"].get<std::string>(), each["sample"].get<std::uint32_t>(),
                        formatCell(each["reason"].get<std::string>()));
  }
  return text;
}

// Checks a split, and adds the damaged samples to report["damaged"].
void checkSplit(const std::string& name, const std::shared_ptr<const Dataset>& data,
                const DataCheckOptions& options, Json& report) {
  SamplesProgress progress("check " + name, data->size());
  CheckOptions check;
  check.threads =
      options.threads == 0 ? static_cast<std::uint32_t>(usableCores()) : options.threads;
  check.progress = [&](std::uint32_t done) { progress.show(done); };
  check.found = [&](const DamagedSample& sample) {
    report["damaged"].push_back({{"split", name},
                                 {"sample", sample.index},
                                 {"name", sample.name},
                                 {"reason", sample.reason}});
    if (options.json) return;
    StatusLine::instance().writeAbove(STDOUT_FILENO,
                                      fmt::format("{}: {} {}\n", name, sample.name, sample.reason));
  };
  const std::uint32_t damaged = checkSamples(data, check);
  report["splits"][name] = {{"samples", data->size()}, {"damaged", damaged}};
}

void printSummary(const Json& report, const DataCheckOptions& options) {
  std::string text;
  std::uint32_t most = 0;
  for (const auto& [name, split] : report["splits"].items()) {
    const auto damaged = split["damaged"].get<std::uint32_t>();
    most = std::max(most, damaged);
    text += fmt::format("{}{}: {}, {} damaged", text.empty() ? "" : "; ", name,
                        countText(split["samples"].get<std::uint32_t>(), "sample"), damaged);
  }
  std::cout << fmt::format("{}; {}\n", text, durationText(report["seconds"].get<double>()));
  if (!options.output.empty())
    std::cout << "list of the damaged samples: " << options.output << "\n";
  if (most > 0) {
    std::cout << "hint: replace or remove the damaged samples, or set data.skip: " << most << "\n";
  }
  std::cout << std::flush;
}

int dataCheckCommand(const DataCheckOptions& options) {
  startLog("cleave-client", options.common.logLevel);
  if (!options.output.empty()) checkOutputFile(options.output, options.overwrite, "damaged.csv");
  Config config = loadConfig(options.common);
  const ClientSettings settings = readClientSettings(config);
  const SteadyTime start = now();
  const Datasets data = openForCheck(settings.data);
  Json report = {{"splits", Json::object()}, {"damaged", Json::array()}};
  checkSplit("train", data.train, options, report);
  checkSplit("test", data.test, options, report);
  report["seconds"] = secondsSince(start);
  if (!options.output.empty()) writeFileDurably(options.output, csvOf(report["damaged"]));
  if (options.json) {
    std::cout << report.dump(2) << std::endl;
  } else {
    printSummary(report, options);
  }
  return report["damaged"].empty() ? 0 : 1;
}

}  // namespace

void addDataCheckCommand(CLI::App& data, DataCheckOptions& options, std::function<int()>& command) {
  CLI::App* check = data.add_subcommand(
      "check", "Reads and decodes every sample of both splits, and lists the damaged ones");
  addCommonOptions(*check, options.common, true);
  check
      ->add_option("--threads", options.threads,
                   "Threads that read samples; default: one per core that the process may use")
      ->check(CLI::Range(1u, 1024u));
  check
      ->add_option("--output", options.output,
                   "Writes the damaged samples as CSV: name (of its file), split, sample, reason")
      ->type_name("FILE");
  check->add_flag("--overwrite", options.overwrite, "Replaces the file if it exists");
  check->add_flag("--json", options.json, "Prints JSON, and nothing else, on stdout");
  check->footer(
      "Example:\n  cleave-client data check --config pets.yaml --output damaged.csv\n\n"
      "A sample is damaged if it cannot be read, or has values that are not finite.\n\n"
      "Exit codes: 0 nothing is damaged, 1 something is damaged, 2 usage error.");
  check->callback([&] { command = [&] { return dataCheckCommand(options); }; });
}

}  // namespace cleave
