// Reads the files of a run that are not tables, for the report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/report/records/run_totals.h"
#include "common/topology/cohort.h"

namespace cleave {

// Pairs of a key such as "train.batch" and its value as text, in file order.
using Settings = std::vector<std::pair<std::string, std::string>>;

// A setting that was changed on resume. It applies to the steps after `step`.
struct ChangedSetting {
  std::uint64_t step = 0;
  std::string key, before, after;
};
// Reads a run's changes.json; empty if the file is damaged or missing.
std::vector<ChangedSetting> readChanges(const std::string& path);

// A run's cohort.json; without members if the file is damaged or missing.
struct CohortFile {
  std::string id, member;
  std::vector<std::string> members;
  std::vector<std::uint32_t> samples;  // for training, by member
  std::vector<Attendance> attendance;
  std::vector<std::string> waitsFor = {};  // members whose connections have broken

  bool operator==(const CohortFile&) const = default;
};
CohortFile readCohort(const std::string& path);

// Appends a sentence to `problems` if the file cannot be read. A setting that was changed on
// resume has its earlier values too: "4 (2 until step 16)".
Settings readConfig(const std::string& path, const std::vector<ChangedSetting>& changes,
                    std::vector<std::string>& problems);
Settings readEnvironment(const std::string& path, std::vector<std::string>& problems);

// The part of a run's summary.json that the page shows; empty if the file is damaged.
struct SummaryFile {
  std::string advice;
  struct Kept {
    std::string metric;
    double value = 0;
    std::uint64_t epoch = 0;
  };
  std::optional<Kept> kept;  // the best model, if keep.best is set
  // When the run reached eval.target.
  struct Target {
    std::string metric;
    double value = 0;
    std::uint64_t steps = 0;  // 0: it was not reached
    double seconds = 0, bytes = 0;
  };
  std::optional<Target> target;
  struct Interruptions {
    std::uint64_t reconnects = 0, resumes = 0, stepsRedone = 0;
    double offlineSeconds = 0;
  };
  std::optional<Interruptions> interruptions;
  std::optional<RunTotals> totals;
  struct Bound {
    double secondsPerStep = 0, overBound = 0;
    std::string bottleneck;
  };
  std::optional<Bound> bound;

  bool isEmpty() const { return advice.empty() && !kept && !interruptions && !totals && !bound; }
};
SummaryFile readSummary(const std::string& path);

// From a run's run.json.
struct PlannedRun {
  std::uint64_t steps = 0, epochs = 0;  // totals of the training; 0: unknown
  std::uint64_t servers = 1;            // replicas included
};
PlannedRun readPlannedRun(const std::string& path);

// Returns the last warnings and errors in a log; empty if the log does not exist.
std::vector<std::string> readWarnings(const std::string& path);

}  // namespace cleave
