// Reads the files of a run that is finished or in progress. Missing, incomplete or damaged files
// are listed in problems(); all other data is still available.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/report/csv_reader.h"
#include "client/report/evaluation.h"
#include "client/report/run_figures.h"
#include "client/report/run_place.h"
#include "client/report/run_settings.h"

namespace cleave {

// Not thread-safe.
class RunReader {
 public:
  // `grids` must outlive the reader.
  RunReader(RunPlace place, BucketAxes& grids);
  ~RunReader();

  // Reads new content. Returns whether there was any.
  bool read();

  const std::string& folder() const { return place_.folder; }
  const std::string& id() const { return id_; }  // empty if no file contains the id
  bool hasServer() const { return server_ != nullptr; }
  // Whether the parts of the server's steps are known only from the client's rows.
  bool isServerSeenByClient();
  StepSplit& serverSplit();  // from the server's rows or, if there are none, from the client's
  SideFigures& client();
  SideFigures& server();  // requires hasServer()
  TrainingFigures& training() { return training_; }
  const TrainingFigures& training() const { return training_; }
  // The run's main metric: the name of the column after the loss. Empty if the run has no metric.
  std::string metricName() const;
  const Settings& config() const { return config_; }
  const std::vector<ChangedSetting>& changes() const { return changes_; }
  const Settings& environment() const { return environment_; }
  const Settings& serverEnvironment() const { return serverEnvironment_; }
  // The summary is empty until the run has ended.
  const SummaryFile& summary() const { return summary_; }
  const nlohmann::json& evaluation() const { return evaluation_.shown(); }
  const PlannedRun& planned() const { return planned_; }
  // One sentence per problem. `following`: the run may still be in progress.
  std::vector<std::string> problems(bool following) const;
  // The last warnings and errors in log.txt.
  const std::vector<std::string>& logged() const { return logged_; }

 private:
  struct Side;
  void findServer();
  void noteInterruption(Side& side, std::string_view phase, double generation, double time,
                        double step);
  void readSteps(Side& side, bool isClient);
  void readTransfers(Side& side, bool isClient);
  void readEpochs();
  void splitServerSteps();
  void readSettings();
  void readLog();

  BucketAxes& grids_;
  RunPlace place_;
  std::string id_;
  std::unique_ptr<Side> client_, server_;
  std::unique_ptr<CsvReader> epochs_;
  TrainingFigures training_;
  Settings config_, environment_, serverEnvironment_;
  std::vector<ChangedSetting> changes_;
  SummaryFile summary_;
  EvaluationReader evaluation_;
  // The steps whose server side is not split yet, and the seconds that the servers' codecs took in
  // a step, by its number.
  struct SeenStep {
    double step = 0;
    bool isWarmUp = false;
    double seconds = 0, computed = 0, wire = 0;
  };
  std::vector<SeenStep> seenSteps_;
  std::vector<float> serverCodecSeconds_;
  PlannedRun planned_;
  std::vector<std::string> settingsProblems_;
  std::vector<std::string> logged_;
};

}  // namespace cleave
