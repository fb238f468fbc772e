// Reads the files of a run that is finished or in progress. Missing, incomplete or damaged files
// are listed in problems(); all other data is still available.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/report/records/csv_reader.h"
#include "client/report/records/evaluation.h"
#include "client/report/records/run_figures.h"
#include "client/report/records/run_place.h"
#include "client/report/records/run_settings.h"
#include "client/report/records/server_steps.h"

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
  // Whether the parts of the servers' steps are known only from the client's rows.
  bool areServersSeenByClient() const { return serverSteps_.areSeenByClient(); }
  std::vector<StepSplit*> serverSplits() { return serverSteps_.splits(); }  // see ServerSteps
  SideFigures& client();
  // A server whose folder was found.
  struct Server {
    std::size_t number = 1;  // from 1
    SideFigures& figures;
    const Settings& environment;
  };
  std::vector<Server> servers();  // by number
  TrainingFigures& training() { return training_; }
  const TrainingFigures& training() const { return training_; }
  // The run's main metric: the name of the column after the loss. Empty if the run has no metric.
  std::string metricName() const;
  const Settings& config() const { return config_; }
  const std::vector<ChangedSetting>& changes() const { return changes_; }
  const CohortFile& cohort() const { return cohort_; }
  const Settings& environment() const { return environment_; }
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
  struct EpochColumns;
  void findServers();
  std::string prefixOf(std::size_t server) const;
  void noteInterruption(Side& side, std::string_view phase, double generation, double time,
                        double step);
  void readSteps(Side& side, std::size_t server);  // 0: the client
  void readTransfers(Side& side, bool isClient);
  void readEpochs();
  std::string evaluatedMetric() const;
  void readSettings();
  void readLog();

  BucketAxes& grids_;
  RunPlace place_;
  const bool areServersGiven_;
  std::string id_;
  std::unique_ptr<Side> client_;
  std::map<std::size_t, std::unique_ptr<Side>> servers_;  // by number
  std::unique_ptr<CsvReader> epochs_;
  std::unique_ptr<EpochColumns> ofEpochs_;
  TrainingFigures training_;
  double lastEpochRow_ = 0;
  ServerSteps serverSteps_;
  Settings config_, environment_;
  std::vector<ChangedSetting> changes_;
  CohortFile cohort_;
  SummaryFile summary_;
  EvaluationReader evaluation_;
  PlannedRun planned_;
  std::vector<std::string> settingsProblems_;
  std::vector<std::string> logged_;
};

}  // namespace cleave
