// Reads the files of a finished run, or of one in progress. Missing, incomplete or damaged files
// are listed in problems(); everything else is still available.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/report/csv_reader.h"
#include "client/report/run_figures.h"
#include "client/report/run_place.h"
#include "client/report/run_settings.h"

namespace cleave {

// Not thread-safe.
class RunReader {
 public:
  // `grids` must outlive it.
  RunReader(RunPlace place, BucketAxes& grids);
  ~RunReader();

  // Reads new content. Returns whether there was any.
  bool read();

  const std::string& folder() const { return place_.folder; }
  const std::string& id() const { return id_; }  // empty if no file has it
  bool hasServer() const { return server_ != nullptr; }
  SideFigures& client();
  SideFigures& server();  // requires hasServer()
  TrainingFigures& training() { return training_; }
  const TrainingFigures& training() const { return training_; }
  // The run's main metric: the column after the loss. Empty if it has none.
  std::string metricName() const;
  const Settings& config() const { return config_; }
  const Settings& environment() const { return environment_; }
  const Settings& serverEnvironment() const { return serverEnvironment_; }
  // Empty until the run has ended.
  const SummaryFile& summary() const { return summary_; }
  const nlohmann::json& evaluation() const { return evaluation_; }  // of readEvaluation()
  const PlannedLength& planned() const { return planned_; }
  // Sentences. `following`: the run may still be in progress.
  std::vector<std::string> problems(bool following) const;
  // The last warnings and errors in log.txt.
  const std::vector<std::string>& logged() const { return logged_; }

 private:
  struct Side;
  void findServer();
  void readSteps(Side& side, bool isClient);
  void readTransfers(Side& side, bool isClient);
  void readEpochs();
  void readSettings();
  bool readEvaluationIfChanged();
  void readLog();

  BucketAxes& grids_;
  RunPlace place_;
  std::string id_;
  std::unique_ptr<Side> client_, server_;
  std::unique_ptr<CsvReader> epochs_;
  TrainingFigures training_;
  Settings config_, environment_, serverEnvironment_;
  SummaryFile summary_;
  nlohmann::json evaluation_;
  std::filesystem::file_time_type evaluationTime_;
  std::vector<std::string> evaluationProblems_;
  PlannedLength planned_;
  std::vector<std::string> settingsProblems_;
  std::vector<std::string> logged_;
};

}  // namespace cleave
