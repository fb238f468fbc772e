// Continues a run in its folder (`train --resume`): its configuration, what may change, and its
// record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/run/prepare.h"

namespace cleave {

// Completes the options from the run's folder. Throws UsageError: "no-run"; "run-done" if the run
// is done and no option could give it more steps; "other-run-spec" if config.yaml was edited.
RunOptions ofEarlierRun(RunOptions options);

// What `config`, from these options, changes in the run's configuration. `settings`: those of
// `config`. Throws UsageError "other-run-spec" for a key that may not change.
std::vector<SettingChange> changesOfEarlierRun(const RunOptions& options, const Config& config,
                                               const ClientSettings& settings);

// Opens the data of a run that continues. If the data is missing, or a key does not fit it, the
// hint is to restore the data, because the run's keys for data may not change.
Datasets openAgain(const DataSettings& settings, const DataOpener& open);
// Throws UsageError "other-data" if the samples are not those of the start of the run, as far as
// digestOf() covers them, or if the training set no longer has the classes and column statistics
// that are in the run's saved model, if there is one.
void checkSameData(const PreparedRun& run, const std::string& folder);

// Removes the checkpoints of a run, and their list.
void removeCheckpoints(const std::string& folder);

// Sets the members of `run` that depend on the folder. Throws UsageError "run-done" if the run is
// done and gets no more steps, and "bad-config" if it has already done more steps than it gets.
void openEarlierRun(PreparedRun& run, const RunOptions& options);

// Call when all sides have the state after `step`: makes the run's files those of a run with these
// settings that is not done.
void continueRun(PreparedRun& run, std::uint64_t step);

// The hint if a run that is done cannot continue, because no checkpoint of its end is left.
std::string withoutCheckpointHint(const std::string& folder);

// Writes run.json. `servers`: empty for local servers.
void writeRecord(const PreparedRun& run, const std::string& servers);
// Call when all members of a cohort are known: corrects the numbers of steps and epochs in
// run.json.
void recordLength(const PreparedRun& run);

// Call after run.settings.resolved has changed: writes config.yaml again, and its digest in
// run.json.
void rewriteConfig(const PreparedRun& run);

}  // namespace cleave
