// The steps of resolveRun() and prepareRun(), by subject. Each fills in or checks a part of the
// run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/run/connect.h"
#include "client/run/prepare.h"

namespace cleave {

// ---- prepare_servers.cpp ----

// Sets `servers` and `settings.bodyReplicas`. `bodies`: from --server; if empty, those of the
// configuration count. An inference uses only the first replica, which does not change its results.
void chooseServers(PreparedRun& run, std::vector<BodyServers> bodies, Purpose purpose);
// Sets `threads`; needs `servers`.
void chooseThreadsOf(PreparedRun& run, Purpose purpose);
void startLocalServers(PreparedRun& run);

// ---- prepare_checks.cpp ----

// Each appends to `warnings`.
void warnOfLargeBatch(PreparedRun& run);
void warnOfEvaluation(PreparedRun& run);
// A share above 1, which was probably meant in percent.
void warnOfTarget(PreparedRun& run);
void warnOfInputs(PreparedRun& run);
void warnOfSmallNorms(PreparedRun& run);
void warnOfBits(PreparedRun& run);  // of a resumed run
// Throws UsageError if the loss cannot compare the model's output with the data's target.
void checkTarget(const PreparedRun& run);
// Throws UsageError "bad-detection" if the run uses something that privacy.detect does not support.
void checkDetection(const PreparedRun& run);
// Sets Defences::key, from the key file and what determines what the run sends: two runs draw the
// same numbers only if they send the same tensors. An inference draws others in each call.
void giveDefencesTheirKey(PreparedRun& run, const Config& config, Purpose purpose);
// Throws UsageError "bad-defence" if a defence cannot work in the run.
void checkDefences(const PreparedRun& run);

// ---- prepare_cohort.cpp ----

// Throws UsageError "bad-cohort" if the run uses something that cohorts do not support.
void checkCohortUse(const PreparedRun& run);
// The settings that all members of the run's cohort must have alike, and their values.
std::map<std::string, std::string> agreedValues(const Config& config, const PreparedRun& run);

// ---- prepare_plan.cpp ----

// Removes the codecs of flows that the run does not have, such as the gradient of a cut that needs
// none.
void dropUnusedFlows(PreparedRun& run);

}  // namespace cleave
