// Reads what a run left behind, or what one under way has so far. Tolerant: what is missing,
// unfinished or damaged is named in problems(), and all else is still there.
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

// Not for several threads.
class RunReader {
 public:
  // `grids` outlives it.
  RunReader(RunPlace place, Grids& grids);
  ~RunReader();

  // What has come since the last call. Returns whether there was anything.
  bool read();

  const std::string& folder() const { return place_.folder; }
  const std::string& id() const { return id_; }  // empty where no file says it
  bool hasServer() const { return server_ != nullptr; }
  SideFigures& client();
  SideFigures& server();  // requires hasServer()
  TrainingFigures& training() { return training_; }
  const Settings& config() const { return config_; }
  const Settings& environment() const { return environment_; }
  const Settings& serverEnvironment() const { return serverEnvironment_; }
  // The sentence that the run ended with; empty: it has none, or has not ended.
  const std::string& advice() const { return advice_; }
  // Sentences. `following`: the run may still go on.
  std::vector<std::string> problems(bool following) const;
  // Warnings and errors of log.txt, the last ones.
  const std::vector<std::string>& logged() const { return logged_; }

 private:
  struct Side;
  void findServer();
  void readSteps(Side& side, bool isClient);
  void readTransfers(Side& side, bool isClient);
  void readEpochs();
  void readSettings();
  void readLog();

  Grids& grids_;
  RunPlace place_;
  std::string id_;
  std::unique_ptr<Side> client_, server_;
  std::unique_ptr<CsvReader> epochs_;
  TrainingFigures training_;
  Settings config_, environment_, serverEnvironment_;
  std::string advice_;
  std::vector<std::string> settingsProblems_;
  std::vector<std::string> logged_;
};

}  // namespace cleave
