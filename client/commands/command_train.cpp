// cleave-client train: trains a model and writes its weights and records.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "client/commands/commands.h"
#include "client/commands/dashboard.h"
#include "client/commands/train_summary.h"
#include "client/data/files/damage.h"
#include "client/diagnose/probe.h"
#include "client/diagnose/probe_report.h"
#include "client/planning/auto_codec.h"
#include "client/report/live_report.h"
#include "client/run/prepare.h"
#include "client/train/adapter_file.h"
#include "client/train/model_saver.h"
#include "client/train/run_trace.h"
#include "client/train/trainer.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/failpoint.h"
#include "common/core/log.h"
#include "common/core/progress_clock.h"
#include "common/http/http_server.h"
#include "common/program/resumable_error.h"

namespace cleave {
namespace {

// Measures the links one after another, and writes the results to the run's folder.
nlohmann::json probeFirst(const PreparedRun& run, spdlog::logger& log) {
  ProbeOptions options;
  options.seconds = run.settings.probeSeconds;
  options.retrySeconds = run.settings.retrySeconds;
  options.progressSeconds = run.settings.progressSeconds;
  const bool isOne = run.servers.size() == 1;
  std::string csv, sentences;
  nlohmann::json servers = nlohmann::json::array();
  for (std::size_t s = 0; s < run.servers.size(); ++s) {
    const ProbeResult result = probeLink(run.servers[s], options);
    const std::string rows = probeCsv(result, helloFor(run, s).run_id());
    csv += s == 0 ? rows : rows.substr(rows.find('\n') + 1);  // one header
    const std::string sentence =
        isOne ? sentenceOf(result) : fmt::format("server {}: {}", s + 1, sentenceOf(result));
    log.log(isReliable(result) ? spdlog::level::info : spdlog::level::warn, "link: {}", sentence);
    sentences += (s == 0 ? "" : "; ") + sentence;
    servers.emplace_back(probeJson(result));
  }
  writeFileDurably(run.folder + "/probe.csv", csv);
  if (isOne) return servers.front();
  return {{"sentence", sentences}, {"servers", servers}};
}

// The descriptor for progress output; -1: no progress is shown. With --json or --json-lines, stdout
// has only results and events.
int progressFd(const TrainOptions& options) {
  if (options.quiet) return -1;
  return options.run.json || options.jsonLines ? STDERR_FILENO : STDOUT_FILENO;
}

// `events`: null without --json-lines.
void announce(const TrainRun& trainRun, std::uint64_t steps, spdlog::logger& log,
              JsonLines* events) {
  const PreparedRun& run = trainRun.prepared();
  std::string serverThreads;
  for (std::size_t b = 0; b < run.bodies.size(); ++b) {
    const wire::HelloOk& ok = trainRun.answer(b);
    serverThreads += (b == 0 ? "" : ", ") + std::to_string(ok.threads());
    log.info(
        "run {}: connected to {} ({}), session {}; client: {}, server: {}; {} micro-batches in "
        "flight",
        run.hello.run_id(), run.servers[b].text(), ok.software(), ok.session(), run.settings.device,
        ok.device(), ok.in_flight());
  }
  log.info("threads: {}; the server computes with {}", run.threadsText, serverThreads);
  if (events == nullptr) return;
  events->write("begin", {{"run", run.hello.run_id()},
                          {"folder", run.folder},
                          {"server", addressesText(run)},
                          {"codec", run.settings.codecs},
                          {"steps", steps}});
}

// Prints the result in the requested format.
void printResult(const nlohmann::json& summary, const TrainOptions& options, JsonLines* events) {
  if (events != nullptr) {
    events->write("done", summary);
  } else if (options.run.json) {
    std::cout << summary.dump(2) << std::endl;
  } else {
    printSummary(summary);
  }
}

ErrorKind kindOf(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known == nullptr ? ErrorKind::run : known->kind();
}

// Returns "" if the exception is not an Error, such as LibTorch's.
std::string keyOf(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known == nullptr ? "" : known->key();
}

// For a run that ended early. After an interrupt, saves the current model. After an error, or if
// saving the whole model fails, saves only head and tail.
void keepModel(ModelSaver& saver, bool interrupted, const std::string& folder,
               spdlog::logger& log) {
  try {
    if (interrupted && saver.keepsNewer(log)) return;
    if (interrupted && saver.finish()) {
      return log.info("the model after these steps: {}/model.safetensors", folder);
    }
  } catch (const std::exception& error) {
    const bool timeIsUp = kindOf(error) == ErrorKind::interrupt;
    if (!timeIsUp) log.error("another error followed: {}", error.what());
  }
  try {
    saver.saveParts(log);
  } catch (const std::exception& error) {  // also LibTorch's exceptions
    log.error("another error followed: {}", error.what());
  }
}

// Call this before any other work, because it throws if the address is not allowed.
std::optional<LiveReport> openDashboard(const TrainOptions& options) {
  if (options.dashboard.empty()) return std::nullopt;
  return std::optional<LiveReport>(
      std::in_place, dashboardSettings({"--dashboard", options.dashboard}, options.anywhere));
}

PreparedRun prepare(const TrainOptions& options) {
  RunOptions runOptions = options.run;
  if (!options.trace.empty()) {
    checkTracePath(options.trace);
    runOptions.traceSteps = options.traceSteps;
  }
  if (options.probe) runOptions.common.overrides.emplace_back("probe.first=true");
  return prepareRun(runOptions, Purpose::training);
}

// Writes the trace when the steps that the run spec selects are done. Call when the run is
// connected: a cohort's may have fewer.
void writeTraceWhenDone(const std::string& path, TrainRun& run, Trainer& trainer,
                        spdlog::logger& log, nlohmann::json& extras) {
  // A trace can only be fetched while no step is in progress.
  const TraceWindow& window = run.prepared().plan.spec.trace;
  const std::uint64_t total = run.prepared().totalSteps();
  if (!path.empty() && window.first > total) {
    log.warn("no trace: the run has a single step, with which a cohort's trace does not begin");
    return;
  }
  const std::uint64_t last = std::min(window.last(), total);
  trainer.pauseAfter(last);
  trainer.afterEachStep([&, path, last](std::uint64_t step) {
    if (run.session().traces().empty() || step != last) return;
    extras["trace"] = writeRunTrace(path, run.prepared(), run.session());
    log.info("trace: {}", sentenceOfTrace(extras["trace"]));
  });
}

// The command that continues the run after this error. Other files in place of damaged ones would
// be other data, with which no run continues.
std::string resumeCommand(const std::exception& error, const PreparedRun& run) {
  std::string command = run.resumeCommand;
  if (keyOf(error) == kSkipKey)
    command += fmt::format(" --set data.skip={}", run.settings.data.skip + 1);
  return command;
}

// For a run that ended with `error`. Saves its model and records, and logs their locations.
void endEarly(const std::exception& error, TrainRun& run, const Trainer& trainer, ModelSaver& saver,
              spdlog::logger& log) {
  const bool interrupted = kindOf(error) == ErrorKind::interrupt;
  if (interrupted) {
    log.info("interrupted after {} of {} steps", trainer.steps(), run.prepared().totalSteps());
  } else {
    log.error("the run failed: {}", error.what());
  }
  keepModel(saver, interrupted, run.prepared().folder, log);
  run.close(interrupted ? "interrupted" : "failed");
  try {
    run.finishRecords();
    log.info("to see the records so far: cleave-client report {}", run.prepared().folder);
  } catch (const Error& second) {
    log.error("another error followed: {}", second.what());
  }
  if (run.checkpointer() == nullptr) return;
  log.info("to continue from step {}: {}", run.checkpointer()->lastCommit(),
           resumeCommand(error, run.prepared()));
}

// Rethrows the current exception, after a run that ended early. If it can be resumed, adds the
// command. If a disk is full, and the client's own server stores its files in the run's folder,
// says so: to its client, it is "the server's disk".
[[noreturn]] void rethrowEnd(const std::exception& error, const PreparedRun& run, bool mayResume) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr) throw;
  std::string sentence = known->what();
  // After an interrupt, only the command is left to say.
  std::string hint = mayResume && known->kind() == ErrorKind::interrupt ? "" : known->hint();
  if (known->key() == kDisk && !run.localServers.empty()) {
    sentence +=
        "; the client has started its own server, which stores its files in the run's folder " +
        run.folder + " too";
    hint = "free disk space on this machine";
  }
  const bool isDamage = known->key() == kSkipKey;
  if (isDamage && mayResume) {
    hint = fmt::format(
        "replace or remove the damaged samples and start a separate run, or use other samples in "
        "their place (to list all: cleave-client data check --config {})",
        shellWord(run.folder + "/config.yaml"));
  }
  const bool isOfResume = known->key() == "--resume";  // the same command would fail again
  const bool mayContinue =
      mayResume && !isOfResume && (isDamage || known->kind() != ErrorKind::usage);
  if (!mayContinue) throw RunError(*known, sentence, hint);
  throw ResumableError(*known, sentence, hint, resumeCommand(error, run));
}

// State that lives as long as the training run, across restarts from a checkpoint.
struct TrainCommand {
  const TrainOptions& options;
  JsonLines* events;  // null without --json-lines
  PreparedRun& prepared;
  spdlog::logger& log;
  nlohmann::json extras = nlohmann::json::object();        // additional keys of the summary
  std::uint64_t attempts = 0;                              // that made at least one step
  std::optional<ProgressClock> stuckSince = std::nullopt;  // set by the first error
  std::unique_ptr<TrafficRecording> traffic = nullptr;     // null: not recorded
  std::unique_ptr<GradientCheck> check = nullptr;          // null: the server is not checked
  std::uint64_t edgeFailedAt = 0;  // steps done when a direct link between servers failed last
};

// Whether the run may be restarted from a checkpoint, because only this attempt has ended, such as
// by a server that has lost the run, is about to shut down, or cannot reach another server. If a
// direct link has failed, steps must have been made since the last time. All else is tried again
// for as long as a lost connection is.
bool mayRestart(const std::exception& error, TrainRun& run, std::uint64_t steps,
                TrainCommand& command) {
  if (run.checkpointer() == nullptr || !run.prepared().localServers.empty()) return false;
  if (run.settings().reconnectSeconds == 0 || run.session().isInterrupted()) return false;
  if (kindOf(error) != ErrorKind::attempt) return false;
  if (keyOf(error) == "connect.direct") return steps > std::exchange(command.edgeFailedAt, steps);
  return command.stuckSince->secondsWithout(command.attempts, now()) <
         run.settings().reconnectSeconds;
}

nlohmann::json summaryOf(const TrainCommand& command, const TrainResult& result,
                         const RunSpent& spent, bool hasModel) {
  nlohmann::json summary = summariseTraining(command.prepared, result, spent, hasModel);
  if (command.traffic) summary["recording"] = command.traffic->summary();
  if (command.check) summary["detection"] = command.check->summary();
  summary.update(command.extras);
  return summary;
}

void writeSummary(const TrainCommand& command, const nlohmann::json& summary) {
  writeFileDurably(command.prepared.folder + "/summary.json", summary.dump(2) + "\n");
}

// Rewrites summary.json with the final bytes and seconds. If this fails, the run still counts as
// complete.
void updateSummary(const TrainCommand& command, const nlohmann::json& summary) {
  try {
    writeSummary(command, summary);
  } catch (const Error& error) {
    command.log.warn("summary.json lacks the final bytes and seconds: {}", error.what());
  }
}

// Makes all rows of the CSV files durable. Dropped rows are not an error here: they are reported at
// the end of the run.
void makeRecordsSafe(TrainRun& run) {
  try {
    run.recorder().sync();
  } catch (const Error& error) {
    if (error.key() == kDisk) throw;
  }
}

// Logs which files the run will not write, if any.
void warnOfMissingFiles(const TrainRun& run, spdlog::logger& log) {
  const PreparedRun& prepared = run.prepared();
  if (prepared.settings.lora.rank > 0 && !fitsPeft(prepared.plan.blocks)) {
    log.warn(
        "no folder 'adapter' will be written: PEFT's format cannot store learned inserts, or "
        "adapters of layers whose own weights are also trained; model.safetensors contains all of "
        "them");
  }
  if (!prepared.settings.bestMetric.empty() && !run.mayFetchWeights()) {
    log.warn("keep.best has no effect: this server does not allow clients to fetch the body");
  }
}

std::set<std::string> trivialMetrics(const PreparedRun& run) {
  std::set<std::string> trivial;
  for (const std::string& metric : run.settings.scores.metrics) {
    if (isTrivial(metric, outputSize(run.plan))) trivial.insert(metric);
  }
  return trivial;
}

struct Trained {
  TrainResult result;
  bool hasModel = false;
};

// Trains until the last step, and writes model and summary durably. Then closes the session. In a
// relay, returns nothing at the end of a turn that is not the last one.
std::optional<Trained> trainToTheEnd(TrainCommand& command, TrainRun& run, Trainer& trainer,
                                     ModelSaver& saver) {
  const TrainResult result = trainer.run();
  failpoint("trained");
  if (run.hasTurn()) {
    run.handOver(trainer.notes());
    failpoint("handed-over");
    if (run.hasTurnsAfter()) {
      makeRecordsSafe(run);
      run.close("turn over");
      return std::nullopt;
    }
  }
  // If there is no best model, the last one is saved, whatever keep.last says.
  const bool savesLast =
      run.settings().keepsLast ||
      !std::filesystem::exists(run.prepared().folder + "/model.best.safetensors");
  const bool hasModel = savesLast && saver.finish();
  if (!savesLast) saver.removeLast();  // an interruption may have left one
  if (savesLast && !hasModel) {
    command.log.warn(
        "this server does not allow clients to fetch the body, so there is no model.safetensors");
    saver.saveParts(command.log);
  }
  // A run with a summary can only be continued for more epochs, and the server removes its older
  // checkpoints after Bye "done". Rows and result must therefore be durable first.
  makeRecordsSafe(run);
  writeSummary(command, summaryOf(command, result, trainer.spent(), hasModel));
  failpoint("summary");
  run.close("done");
  failpoint("done");
  return Trained{result, hasModel};
}

// Trains until the run is done, and writes its summary. Returns nothing if the run must be
// restarted from a checkpoint, or has another turn. Throws the error that ended the run.
std::optional<nlohmann::json> trainOnce(TrainCommand& command) {
  PreparedRun& prepared = command.prepared;
  spdlog::logger& log = command.log;
  TrainRun run(prepared);
  const auto metrics =
      prepared.settings.metrics ? std::make_shared<Metrics>(Role::client) : nullptr;
  std::unique_ptr<HttpServer> http;
  if (metrics) http = serveMetrics(*prepared.settings.metrics, metrics);
  const SteadyTime begun = now();
  try {
    run.connect(command.check.get());
  } catch (const std::exception& error) {
    if (!prepared.isResumed) throw;
    rethrowEnd(error, prepared, true);
  }
  // The wait for other members of a cohort has no limit.
  if (prepared.plan.member && command.stuckSince) command.stuckSince->exclude(secondsSince(begun));
  const std::uint64_t steps = prepared.totalSteps();
  announce(run, steps, log, command.events);

  Progress progress({progressFd(command.options), command.events, steps,
                     run.settings().scores.names(), run.settings().scores.shares(),
                     trivialMetrics(prepared)});
  Trainer trainer(run, progress);
  ModelSaver saver(
      run.session(), run.stage(), prepared.plan, prepared.folder, run.mayFetchWeights(),
      run.settings().lora,
      prepared.userModel ? prepared.userModel->aliases() : std::map<std::string, std::string>(),
      describeModel(prepared));
  trainer.start({.errorEvery = run.settings().errorEvery,
                 .rotateBytes = run.settings().rotateBytes,
                 .metrics = metrics,
                 .checkpoints = true,
                 .traffic = command.traffic.get(),
                 .tensorBoard = run.settings().tensorBoard});
  if (metrics) {
    metrics->sampleWith(
        [&] { return run.session().samples(run.recorder(), prepared.servers.front().tls.get()); });
  }
  writeTraceWhenDone(command.options.trace, run, trainer, log, command.extras);
  const bool keepsLast = prepared.settings.keepsLast;
  const auto waitIfChecked = [&] {  // else a server could hold a model back, and avoid all checks
    if (command.check) run.session().waitForWeights();
  };
  if (keepsLast) {
    trainer.afterEachEpoch([&] {
      saver.save();
      waitIfChecked();
    });
  }
  trainer.afterEachBest([&] {
    saver.keepAsBest(keepsLast);
    waitIfChecked();
  });
  trainer.afterEachFallback([&](const std::string& reason) {
    log.warn("codec: falls back to {} (to keep the codecs: --set quality.every=0)", reason);
  });
  warnOfMissingFiles(run, log);

  std::optional<Trained> trained;
  try {
    trained = trainToTheEnd(command, run, trainer, saver);
  } catch (const std::exception& error) {
    if (trainer.hasTrained()) ++command.attempts;
    if (!command.stuckSince) command.stuckSince.emplace(now());
    if (!mayRestart(error, run, trainer.steps(), command)) {
      endEarly(error, run, trainer, saver, log);
      rethrowEnd(error, prepared, run.checkpointer() != nullptr);
    }
    log.warn("{}", error.what());
    run.close("restarting");
    run.finishRecords();
    return std::nullopt;
  }
  run.finishRecords();
  if (!trained) {
    progress.end();
    return std::nullopt;
  }
  const RunSpent spent = trainer.spent();
  const nlohmann::json summary = summaryOf(command, trained->result, spent, trained->hasModel);
  updateSummary(command, summary);
  log.info("done: {} steps in {}", trained->result.steps, durationText(spent.seconds));
  progress.end();
  return summary;
}

// Call only after the run has completed. The last checkpoint remains, so that the run can be given
// more epochs.
void removeOldCheckpoints(const std::string& folder, spdlog::logger& log) {
  try {
    const std::vector<RunCommit> commits = readCommits(diskFiles(), folder);
    if (commits.size() > 1) writeCommits(diskFiles(), folder, {commits.front()});
    CheckpointStore store(diskFiles(), folder);
    commits.empty() ? store.removeAll() : store.removeExcept({commits.front().step});
  } catch (const Error& error) {
    log.warn("the old checkpoints could not be removed: {}", error.what());
  }
}

// Logs where the next attempt starts: at the newest checkpoint, or at step 0 if there is none.
void announceResume(const TrainCommand& command) {
  if (command.prepared.plan.member) return;  // TrainRun::connect() does, because all decide
  if (command.prepared.commits.empty()) {
    command.log.warn("no checkpoint is available, so the run starts over from step 0");
  } else {
    command.log.info("the run continues from step {}", command.prepared.commits.front().step);
  }
}

void prepareRestart(TrainCommand& command) {
  command.prepared.isResumed = true;
  command.prepared.isRestart = true;
  command.prepared.commits = intactCommits(diskFiles(), command.prepared.folder);
  announceResume(command);
}

// Returns null if nothing is to be recorded.
std::unique_ptr<TrafficRecording> openRecording(const TrafficOptions& options,
                                                const PreparedRun& run) {
  if (options.folder.empty()) return nullptr;
  std::vector<std::string> arrays;
  for (const SampleArray& array : run.data.train->arrays()) arrays.push_back(array.name);
  return std::make_unique<TrafficRecording>(
      options, RecordedRun{run.hello.run_id(), std::filesystem::absolute(run.folder), arrays});
}

int train(const TrainOptions& options, JsonLines* events) {
  startLog("cleave-client", options.quiet ? "warn" : options.run.common.logLevel);
  std::optional<LiveReport> dashboard = openDashboard(options);
  PreparedRun prepared = prepare(options);
  const auto log = runLog(prepared.folder + "/log.txt", "");
  addToProcessLog(log);
  if (dashboard) {
    dashboard->show({{prepared.folder, {}}});
    log->info("dashboard: open {}", dashboard->url());
  }
  logWarnings(prepared, *log);
  TrainCommand command{options, events, prepared, *log};
  if (prepared.settings.probeFirst && !prepared.isResumed)
    command.extras["probe"] = probeFirst(prepared, *log);
  if (const auto chosen = resolveAutoCodecs(prepared, *log)) {
    command.extras["codec_choice"] = *chosen;
  }
  if (prepared.isResumed) announceResume(command);
  command.traffic = openRecording(options.traffic, prepared);
  if (prepared.settings.detection.isOn) command.check = std::make_unique<GradientCheck>(prepared);

  std::optional<nlohmann::json> summary;
  try {
    while (!(summary = trainOnce(command))) prepareRestart(command);
    removeOldCheckpoints(prepared.folder, *log);
  } catch (...) {
    if (dashboard) dashboard->finish();
    throw;
  }
  if (dashboard) dashboard->finish();
  flushLog();  // the summary must be the last output
  printResult(*summary, options, events);
  return 0;
}

}  // namespace

int trainCommand(const TrainOptions& options) {
  if (!options.jsonLines) return train(options, nullptr);
  JsonLines events(STDOUT_FILENO);
  return train(options, &events);  // runProgram() writes the event `failed`
}

}  // namespace cleave
