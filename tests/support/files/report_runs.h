// Small runs for the tests of reports, in the programs' format.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/report/report_data.h"
#include "common/record/run_files.h"
#include "tests/support/files/folder.h"

namespace cleave::test {

inline std::string joined(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) line += (line.empty() ? "" : ",") + cell;
  return line + "\n";
}

// Builds rows in the programs' format from cells by column.
inline std::string rowOf(const std::vector<std::string>& columns,
                         const std::map<std::string, std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto found = cells.find(columns[i]);
    line += (i == 0 ? "" : ",") + (found == cells.end() ? "" : found->second);
  }
  return line + "\n";
}

inline const std::vector<std::string> kMetrics = {"loss", "top1", "top5"};

// The page's data of the run in this folder, and its headline.
inline nlohmann::json runOf(const Folder& folder) {
  ReportData report({findRun(folder.path, {})});
  report.read();
  return report.page(false).at("runs").at(0);
}
inline nlohmann::json headlineOf(const Folder& folder) { return runOf(folder).at("headline"); }

// A run of two steps. The second step took twice as long as the first.
inline void writeRun(const Folder& folder) {
  const auto steps = RunFiles::stepColumns(kMetrics);
  const auto step = [&](const std::string& second, const std::string& phase,
                        std::map<std::string, std::string> cells) {
    cells["time"] = "2026-01-31T12:00:0" + second + "Z";
    cells["run"] = "tiny";
    cells["phase"] = phase;
    return rowOf(steps, cells);
  };
  folder.write("steps.csv", joined(steps) +
                                step("0.000", "handshake", {{"control_up_bytes", "300"}}) +
                                step("1.000", "train",
                                     {{"step", "1"},
                                      {"epoch", "1"},
                                      {"samples", "10"},
                                      {"seconds", "1"},
                                      {"head_forward_seconds", "0.25"},
                                      {"raw_up_bytes", "1000"},
                                      {"wire_up_bytes", "500"},
                                      {"rate_up", "1000"},
                                      {"rate_down", "1000"},
                                      {"bound_seconds", "0.5"},
                                      {"bottleneck", "uplink"},
                                      {"latency_seconds", "0.01"},
                                      {"learning_rate", "0.1"},
                                      {"gradient_norm", "3"},
                                      {"loss", "2"},
                                      {"top1", "0.5"}}) +
                                step("3.000", "train",
                                     {{"step", "2"},
                                      {"epoch", "1"},
                                      {"samples", "10"},
                                      {"seconds", "2"},
                                      {"head_forward_seconds", "0.25"},
                                      {"raw_up_bytes", "1000"},
                                      {"wire_up_bytes", "500"},
                                      {"bound_seconds", "1"},
                                      {"bottleneck", "latency"},
                                      {"loss", "1"},
                                      {"top1", "0.75"}}) +
                                step("4.000", "bye", {{"control_up_bytes", "100"}}));
  const auto epochs = RunFiles::epochColumns(kMetrics);
  folder.write("epochs.csv", joined(epochs) + rowOf(epochs, {{"time", "2026-01-31T12:00:03.500Z"},
                                                             {"run", "tiny"},
                                                             {"epoch", "1"},
                                                             {"steps", "2"},
                                                             {"samples", "20"},
                                                             {"train_seconds", "4"},
                                                             {"eval_loss", "0.5"},
                                                             {"eval_top1", "0.8"}}));
  const auto transfers = RunFiles::transferColumns();
  folder.write("transfers.csv",
               joined(transfers) + rowOf(transfers, {{"time", "2026-01-31T12:00:01.000Z"},
                                                     {"run", "tiny"},
                                                     {"role", "send"},
                                                     {"phase", "train"},
                                                     {"step", "1"},
                                                     {"flow", "activation/0"},
                                                     {"codec", "\"sort:q=6,s=2\""},
                                                     {"raw_bytes", "2000"},
                                                     {"wire_bytes", "1000"},
                                                     {"encode_seconds", "0.1"},
                                                     {"queue_seconds", "0.1"},
                                                     {"wire_seconds", "0.5"},
                                                     {"decode_seconds", "0.1"},
                                                     {"snr_db", "20"}}));
  folder.write("config.yaml",
               "train:\n  batch: 10\nmodel:\n  cuts: [4, 13]\n"
               "insert:\n  - cut: 0\n    kind: conv\n");
  folder.write("environment.json", "{\"cpu\": {\"cores\": 2}}");
  folder.write("run.json", R"({"run": "tiny", "steps": 8, "epochs": 4})");
}

// Writes rows of steps.csv in order. Each row is a second after the previous one.
class Steps {
 public:
  explicit Steps(const Folder& folder) : folder_(folder) {
    folder_.write("steps.csv", joined(columns_));
  }
  void row(const std::string& phase, const std::string& generation, const std::string& step = "",
           bool hasCheckpoint = false) {
    const auto twoDigits = [](int number) { return std::to_string(100 + number).substr(1); };
    std::map<std::string, std::string> cells = {
        {"time",
         "2026-01-31T12:" + twoDigits(seconds_ / 60) + ":" + twoDigits(seconds_ % 60) + ".000Z"},
        {"generation", generation},
        {"phase", phase},
        {"step", step},
        {"control_up_bytes", "1"}};
    ++seconds_;
    if (phase == "train") {
      cells["seconds"] = "1";
      cells["samples"] = "5";
      cells["wire_up_bytes"] = "10";
      cells["raw_up_bytes"] = "20";
    }
    if (hasCheckpoint) cells["checkpoint_seconds"] = "0.1";
    folder_.append("steps.csv", rowOf(columns_, cells));
  }
  void pause(int seconds) { seconds_ += seconds; }

 private:
  const Folder& folder_;
  const std::vector<std::string> columns_ = RunFiles::stepColumns(kMetrics);
  int seconds_ = 0;
};

}  // namespace cleave::test
