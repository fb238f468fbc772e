// cleave-client train: trains a model and writes its weights and records.

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/commands/commands.h"
#include "client/commands/dashboard.h"
#include "client/diagnose/probe.h"
#include "client/diagnose/probe_report.h"
#include "client/report/live_report.h"
#include "client/train/auto_codec.h"
#include "client/train/model_saver.h"
#include "client/train/prepare.h"
#include "client/train/run_trace.h"
#include "client/train/train_summary.h"
#include "client/train/trainer.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/http/http_server.h"

namespace cleave {
namespace {

// Also writes the result to the run's folder.
nlohmann::json probeFirst(const PreparedRun& run, spdlog::logger& log) {
  ProbeOptions options;
  options.seconds = run.settings.probeSeconds;
  options.retrySeconds = run.settings.retrySeconds;
  const ProbeResult result = probeLink(run.server, options);
  writeFileDurably(run.folder + "/probe.csv", probeCsv(result, run.hello.run_id()));
  log.info("link: {}", sentenceOf(result));
  return probeJson(result);
}

// The descriptor for progress output; -1: none. With --json or --json-lines, stdout has only
// results and events.
int progressFd(const TrainOptions& options) {
  if (options.quiet) return -1;
  return options.run.json || options.jsonLines ? STDERR_FILENO : STDOUT_FILENO;
}

// `events`: null without --json-lines.
void announce(const PreparedRun& run, const wire::HelloOk& ok, std::uint64_t steps,
              spdlog::logger& log, JsonLines* events) {
  log.info(
      "run {}: connected to {} ({}), session {}; client: {}, server: {}; {} micro-batches in "
      "flight",
      run.hello.run_id(), run.server.text(), ok.software(), ok.session(), run.settings.device,
      ok.device(), ok.in_flight());
  log.info("threads: {}; the server computes with {}", run.threadsText, ok.threads());
  if (run.settings.wait.any()) {
    log.warn(
        "wait: parts of the model sleep instead of computing: loss and accuracy are meaningless");
  }
  if (events == nullptr) return;
  events->write("begin", {{"run", run.hello.run_id()},
                          {"folder", run.folder},
                          {"server", run.server.text()},
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

// For a run that ended early: saves the model as it is now; if that fails, head and tail only.
void keepModel(ModelSaver& saver, bool interrupted, const std::string& folder,
               spdlog::logger& log) {
  try {
    if (interrupted && saver.finish()) {
      return log.info("the model after these steps: {}/model.safetensors", folder);
    }
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const bool timeIsUp = known != nullptr && known->code() == "interrupted";
    if (!timeIsUp) log.error("another error followed: {}", error.what());
  }
  try {
    saver.saveParts(log);
  } catch (const std::exception& error) {  // also LibTorch's exceptions
    log.error("another error followed: {}", error.what());
  }
}

// Call this first, because the address may be refused.
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

// Writes the trace of the steps given in the run spec, as soon as they are done.
void writeTraceWhenDone(const std::string& path, TrainRun& run, Trainer& trainer,
                        spdlog::logger& log, nlohmann::json& extras) {
  trainer.afterEachStep([&, path](std::uint64_t step) {
    const TraceRecorder* trace = run.session().trace();
    if (trace == nullptr || step != trace->window().last()) return;
    extras["trace"] = writeRunTrace(path, run.prepared(), run.session());
    log.info("trace: {}", sentenceOfTrace(extras["trace"]));
  });
}

// Saves the model and the records of a run that ended with `error`, and logs where they are.
void endEarly(const std::exception& error, TrainRun& run, const Trainer& trainer, ModelSaver& saver,
              spdlog::logger& log) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool interrupted = known != nullptr && known->code() == "interrupted";
  if (interrupted) {
    log.info("interrupted after {} of {} steps", trainer.steps(),
             totalSteps(run.settings(), *run.data().train));
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
}

int train(const TrainOptions& options, JsonLines* events) {
  startLog("cleave-client", options.quiet ? "warn" : options.run.common.logLevel);
  std::optional<LiveReport> dashboard = openDashboard(options);
  PreparedRun prepared = prepare(options);
  const auto log = runLog(prepared.folder + "/log.txt", "");
  if (dashboard) {
    dashboard->show({{prepared.folder, ""}});
    log->info("dashboard: open {}", dashboard->url());
  }
  nlohmann::json extras = nlohmann::json::object();  // keys of the summary
  if (prepared.settings.probeFirst) extras["probe"] = probeFirst(prepared, *log);
  if (const auto chosen = resolveAutoCodecs(prepared, *log)) extras["codec_choice"] = *chosen;

  TrainRun run(prepared);
  const auto metrics =
      prepared.settings.metrics ? std::make_shared<Metrics>(Role::client) : nullptr;
  std::unique_ptr<HttpServer> http;
  if (metrics) http = serveMetrics(*prepared.settings.metrics, metrics);
  run.connect();
  const std::uint64_t steps = totalSteps(run.settings(), *run.data().train);
  announce(prepared, run.answer(), steps, *log, events);

  Progress progress({progressFd(options), events, steps, metricNames()});
  Trainer trainer(run, progress);
  ModelSaver saver(run.session(), run.stage(), prepared.plan, prepared.folder,
                   run.answer().weights_allowed());
  trainer.start({false, run.settings().errorEvery, run.settings().rotateBytes, metrics});
  if (metrics) {
    metrics->sampleWith(
        [&] { return run.session().samples(run.recorder(), prepared.server.tls.get()); });
  }
  writeTraceWhenDone(options.trace, run, trainer, *log, extras);
  trainer.afterEachEpoch([&] { saver.save(); });

  TrainResult result;
  bool hasModel = false;
  const SteadyTime start = now();
  try {
    result = trainer.run();
    hasModel = saver.finish();
    if (!hasModel) {
      log->warn("the server's policy does not hand out the body: there is no model.safetensors");
      saver.saveParts(*log);
    }
    run.close("done");
  } catch (const std::exception& error) {
    endEarly(error, run, trainer, saver, *log);
    if (dashboard) dashboard->finish();
    throw;
  }
  const double seconds = secondsSince(start);
  run.finishRecords();
  nlohmann::json summary =
      summariseTraining(prepared, result, run.session().totals(), seconds, hasModel);
  summary.update(extras);
  writeFileDurably(prepared.folder + "/summary.json", summary.dump(2) + "\n");
  if (dashboard) dashboard->finish();
  log->info("done: {} steps in {}", result.steps, durationText(seconds));
  progress.end();
  flushLog();  // the summary must be printed last
  printResult(summary, options, events);
  return 0;
}

}  // namespace

int trainCommand(const TrainOptions& options) {
  if (!options.jsonLines) return train(options, nullptr);
  JsonLines events(STDOUT_FILENO);
  try {
    return train(options, &events);
  } catch (const Error& error) {
    events.write("failed", {{"code", error.code()},
                            {"sentence", error.what()},
                            {"hint", error.hint()},
                            {"key", error.key()},
                            {"location", error.location()},
                            {"exit_code", error.exitCode()}});
    throw;
  }
}

}  // namespace cleave
