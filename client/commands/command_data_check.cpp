// cleave-client data check: reads every sample, and lists the damaged ones.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/output_file.h"
#include "client/config/settings.h"
#include "client/data/samples/check.h"
#include "client/train/samples_progress.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/files/record.h"

namespace cleave {
namespace {

struct DataCheckOptions {
  CommonOptions common;
  std::uint32_t threads = 0;  // 0: one per core
  std::string output;         // a file path; empty: no file
  bool overwrite = false;     // replaces an existing file
  bool json = false;
};

using Json = nlohmann::ordered_json;

// The damage found so far, as report["damaged"].
class DamageList {
 public:
  explicit DamageList(bool isPrinted) : isPrinted_(isPrinted) {}

  // `sample`: the sample's number; null for rows and files that do not become samples. `hint`:
  // empty: see addHints().
  void add(const std::string& split, const Json& sample, std::string name, std::string reason,
           const std::string& hint) {
    if (reason.starts_with(name + ":")) {  // FILE:LINE: REASON, or FILE: REASON
      const std::size_t end = reason.find(": ", name.size());
      name = reason.substr(0, end);
      reason.erase(0, end);
    }
    for (const std::string& before : {std::string(": "), name + " "}) {
      if (reason.starts_with(before)) reason.erase(0, before.size());
    }
    damaged_.push_back(
        {{"split", split}, {"sample", sample}, {"name", name}, {"reason", reason}, {"hint", hint}});
    if (!isPrinted_) return;
    StatusLine::instance().writeAbove(STDOUT_FILENO,
                                      fmt::format("{}: {} {}\n", split, name, reason));
  }
  std::uint32_t countIn(const std::string& split) const {
    return static_cast<std::uint32_t>(
        std::count_if(damaged_.begin(), damaged_.end(),
                      [&](const Json& each) { return each["split"].get<std::string>() == split; }));
  }
  // The samples without a hint are those that data.skip can allow, in each split.
  void addHints() {
    std::map<std::string, std::size_t> samples;  // by split
    const auto lacksHint = [](const Json& each) { return each["hint"].get<std::string>().empty(); };
    for (const Json& each : damaged_) samples[each["split"]] += lacksHint(each) ? 1 : 0;
    for (Json& each : damaged_) {
      if (!lacksHint(each)) continue;
      each["hint"] = fmt::format("replace or remove the damaged samples, or set data.skip: {}",
                                 std::max(samples["train"], samples["test"]));
    }
  }
  const Json& all() const { return damaged_; }

 private:
  const bool isPrinted_;
  Json damaged_ = Json::array();
};

// Opens both splits, and finds damaged rows and files.
Datasets openForCheck(DataSettings settings, DamageList& list) {
  settings.skip = 0;  // damaged samples are counted, not replaced
  settings.keys.damage = [&](DataSplit split, const std::string& name, const DataError& error) {
    list.add(split == DataSplit::train ? "train" : "test", nullptr, name, error.what(),
             error.hint());
  };
  return openDatasets(settings);
}

std::string csvOf(const Json& damaged) {
  std::string text = "name,split,sample,reason\n";
  for (const Json& each : damaged) {
    const Json& sample = each["sample"];
    text += fmt::format("{},{},{},{}\n", formatCell(each["name"].get<std::string>()),
                        each["split"].get<std::string>(), sample.is_null() ? "" : sample.dump(),
                        formatCell(each["reason"].get<std::string>()));
  }
  return text;
}

// Finds the damaged samples of a split. Returns its entry in report["splits"].
Json checkSplit(const std::string& name, const std::shared_ptr<const Dataset>& data,
                const DataCheckOptions& options, DamageList& list) {
  if (!data) return {{"samples", 0}, {"damaged", list.countIn(name)}};
  SamplesProgress progress("check " + name, data->size());
  CheckOptions check;
  check.threads =
      options.threads == 0 ? static_cast<std::uint32_t>(usableCores()) : options.threads;
  check.progress = [&](std::uint32_t done) { progress.show(done); };
  check.found = [&](const DamagedSample& sample) {
    list.add(name, sample.index, sample.name, sample.reason, sample.hint);
  };
  checkSamples(data, check);
  return {{"samples", data->size()}, {"damaged", list.countIn(name)}};
}

// How to correct the damage, as lines.
std::string hintsFor(const Json& damaged) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> hints;  // each once
  for (const Json& each : damaged) {
    const std::string hint = each["hint"];
    if (std::find(hints.begin(), hints.end(), hint) == hints.end()) hints.push_back(hint);
  }
  if (hints.size() > kShown) return "hint: correct or remove the rows and files above\n";
  std::string text;
  for (const std::string& hint : hints) text += "hint: " + hint + "\n";
  return text;
}

void printCheck(const Json& report, const DataCheckOptions& options) {
  std::string text;
  for (const auto& [name, split] : report["splits"].items()) {
    text += fmt::format("{}{}: {}, {} damaged", text.empty() ? "" : "; ", name,
                        countText(split["samples"].get<std::uint32_t>(), "sample"),
                        split["damaged"].get<std::uint32_t>());
  }
  std::cout << fmt::format("{}; {}\n", text, durationText(report["seconds"].get<double>()));
  if (!options.output.empty())
    std::cout << "list of the damaged samples: " << options.output << "\n";
  if (!report["splits"].contains("test"))
    std::cout << "test: not checked completely, because the training set cannot be opened\n";
  std::cout << hintsFor(report["damaged"]) << std::flush;
}

int dataCheckCommand(const DataCheckOptions& options) {
  startLog("cleave-client", options.common.logLevel);
  if (!options.output.empty()) checkOutputFile(options.output, options.overwrite, "damaged.csv");
  Config config = loadConfig(options.common);
  const ClientSettings settings = readClientSettings(config);
  const SteadyTime start = now();
  DamageList list(!options.json);
  const Datasets data = openForCheck(settings.data, list);
  Json report = {{"splits", Json::object()}};
  report["splits"]["train"] = checkSplit("train", data.train, options, list);
  if (data.train) report["splits"]["test"] = checkSplit("test", data.test, options, list);
  list.addHints();
  report["damaged"] = list.all();
  report["seconds"] = secondsSince(start);
  if (!options.output.empty()) writeFileDurably(options.output, csvOf(report["damaged"]));
  if (options.json) {
    std::cout << report.dump(2) << std::endl;
  } else {
    printCheck(report, options);
  }
  return report["damaged"].empty() ? 0 : 1;
}

}  // namespace

void addDataCheckCommand(CLI::App& data, std::function<int()>& command) {
  static DataCheckOptions options;
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
      "A sample is damaged if it cannot be read, or has values that are not finite. Damaged rows "
      "and files, from which no sample can be made, are listed without a sample.\n\n"
      "Exit codes: 0 nothing is damaged, 1 something is damaged, 2 usage error.");
  check->callback([&] { command = [&] { return dataCheckCommand(options); }; });
}

}  // namespace cleave
