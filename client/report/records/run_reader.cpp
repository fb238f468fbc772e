#include "client/report/records/run_reader.h"

#include <algorithm>
#include <utility>

#include "client/report/records/run_settings.h"
#include "client/report/records/run_side.h"

namespace cleave {
struct RunReader::EpochColumns {
  CsvReader& file;
  std::size_t time = file.column("time");
  std::size_t epoch = file.column("epoch");
  std::size_t steps = file.column("steps");
  std::size_t samples = file.column("samples");
  std::size_t trainSeconds = file.column("train_seconds");
  std::size_t evalLoss = file.column("eval_loss");
  std::size_t evalMetric = file.column("eval_loss+1");
  std::size_t ownEvalMetric = file.column("own_eval_loss+1");
};

RunReader::RunReader(RunPlace place, BucketAxes& grids)
    : grids_(grids),
      place_(std::move(place)),
      areServersGiven_(!place_.servers.empty()),
      client_(std::make_unique<Side>(place_.folder, true, grids)),
      epochs_(std::make_unique<CsvReader>(place_.folder, "epochs")),
      ofEpochs_(new EpochColumns{*epochs_}),
      training_(grids),
      serverSteps_(grids.step),
      evaluation_(place_.folder) {}

RunReader::~RunReader() = default;

SideFigures& RunReader::client() { return client_->figures; }

std::vector<RunReader::Server> RunReader::servers() {
  std::vector<Server> all;
  for (const auto& [number, side] : servers_) {
    all.push_back({number, side->figures, side->environment});
  }
  return all;
}

bool RunReader::read() {
  const auto rows = [this] {
    std::uint64_t sum = epochs_->rows();
    const auto add = [&](const Side& side) { sum += side.steps.rows() + side.transfers.rows(); };
    add(*client_);
    for (const auto& [number, side] : servers_) add(*side);
    return sum;
  };
  const std::uint64_t before = rows();
  readSteps(*client_, 0);
  readEpochs();
  readTransfers(*client_, true);
  findServers();
  for (const auto& [number, side] : servers_) {
    readSteps(*side, number);
    readTransfers(*side, false);
  }
  const bool any = rows() != before;
  if (any || config_.empty()) {
    readSettings();
    readLog();
  }
  serverSteps_.divide(planned_.servers, training_.ended);
  // The summary is written after the last row.
  const bool hadSummary = !summary_.isEmpty();
  if (any || !hadSummary) summary_ = readSummary(place_.folder + "/summary.json");
  const bool isNew = evaluation_.read();  // it may be written at any time after the run
  CohortFile cohort = readCohort(place_.folder + "/cohort.json");
  const bool isCohortNew = cohort != cohort_;  // while the members wait for one, there are no rows
  cohort_ = std::move(cohort);
  return any || isNew || isCohortNew || (!hadSummary && !summary_.isEmpty());
}

void RunReader::findServers() {
  const bool areAll = !servers_.empty() && servers_.size() >= planned_.servers;
  if (place_.servers.empty() || (!areAll && !areServersGiven_)) {
    if (!id_.empty()) place_.servers = findServerRuns(place_.folder, id_);
  }
  for (const auto& [number, folder] : place_.servers) {
    std::unique_ptr<Side>& side = servers_[number];
    if (side) continue;
    side = std::make_unique<Side>(folder, false, grids_);
    serverSteps_.addServer(number);
  }
}

// Of a problem with the records of this server.
std::string RunReader::prefixOf(std::size_t server) const {
  return planned_.servers == 1 && servers_.size() == 1 ? "server: "
                                                       : "server " + std::to_string(server) + ": ";
}

// The main metric by the columns of epochs.csv; empty if there is none.
std::string RunReader::evaluatedMetric() const {
  const std::string& name = epochs_->nameOf(ofEpochs_->evalMetric);
  return name.empty() ? "" : name.substr(std::string_view("eval_").size());
}

void RunReader::readEpochs() {
  const EpochColumns& c = *ofEpochs_;
  epochs_->read([&](const CsvRow& row) {
    const double at = client_->since(row, c.time);
    const auto epoch = row.number(c.epoch);
    const auto steps = row.number(c.steps), samples = row.number(c.samples);
    const auto seconds = row.number(c.trainSeconds);
    const auto loss = row.number(c.evalLoss), metric = row.number(c.evalMetric);
    if (!epoch) row.garble(c.epoch);
    if (!steps) row.garble(c.steps);
    if (!samples) row.garble(c.samples);
    if (!seconds) row.garble(c.trainSeconds);
    if (row.isGarbled()) return;
    // If the run continued from a checkpoint, it may record an epoch twice, with the same result.
    if (*epoch <= lastEpochRow_) return;
    lastEpochRow_ = *epoch;
    ++training_.epochs;
    training_.epochSamples += *samples;
    training_.epochSeconds += *seconds;
    training_.epochSteps += *steps;
    if (loss || metric) {
      training_.evaluations.push_back({static_cast<std::uint64_t>(*epoch), at, training_.epochSteps,
                                       loss, metric, row.number(c.ownEvalMetric)});
    }
  });
}

void RunReader::readSettings() {
  settingsProblems_.clear();
  changes_ = readChanges(place_.folder + "/changes.json");
  config_ = readConfig(place_.folder + "/config.yaml", changes_, settingsProblems_);
  environment_ = readEnvironment(place_.folder + "/environment.json", settingsProblems_);
  planned_ = readPlannedRun(place_.folder + "/run.json");
  for (const auto& [number, side] : servers_) {
    std::vector<std::string> problems;
    side->environment = readEnvironment(place_.servers.at(number) + "/environment.json", problems);
    for (const std::string& problem : problems) {
      settingsProblems_.push_back(prefixOf(number) + problem);
    }
  }
}

void RunReader::readLog() { logged_ = readWarnings(place_.folder + "/log.txt"); }

std::vector<std::string> RunReader::problems(bool following) const {
  std::vector<std::string> all;
  const auto add = [&](const std::vector<std::string>& some, const std::string& prefix) {
    for (const std::string& problem : some) all.push_back(prefix + problem);
  };
  add(client_->steps.problems(following), "");
  add(epochs_->problems(following), "");
  add(client_->transfers.problems(following), "");
  for (const auto& [number, side] : servers_) {
    add(side->steps.problems(following), prefixOf(number));
    add(side->transfers.problems(following), prefixOf(number));
  }
  add(settingsProblems_, "");
  add(evaluation_.problems(), "");
  return all;
}

}  // namespace cleave
