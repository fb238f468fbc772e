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
#include "common/run/action_tables.h"
#include "common/run/torch_errors.h"

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
int peoplesDescriptor(const TrainOptions& options) {
  if (options.quiet) return -1;
  return options.run.json || options.jsonLines ? STDERR_FILENO : STDOUT_FILENO;
}

// `events`: null without --json-lines.
void announce(const PreparedRun& run, const wire::HelloOk& ok, std::uint64_t steps,
              spdlog::logger& log, JsonLines* events) {
  log.info(
      "run {}: connected to {} ({}), session {}; computing on {} here, {} there; {} micro-batches "
      "in flight",
      run.hello.run_id(), run.server.text(), ok.software(), ok.session(), run.settings.device,
      ok.device(), ok.in_flight());
  log.info("threads: {}; the server computes with {}", run.threadsText, ok.threads());
  if (run.settings.wait.any()) {
    log.warn("wait: parts of the model sleep instead of computing: loss and accuracy mean nothing");
  }
  if (events == nullptr) return;
  events->write("begin", {{"run", run.hello.run_id()},
                          {"folder", run.folder},
                          {"server", run.server.text()},
                          {"codec", run.settings.codecs},
                          {"steps", steps}});
}

// Prints the result in the requested format.
void tell(const nlohmann::json& summary, const TrainOptions& options, JsonLines* events) {
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
    if (!timeIsUp) log.error("and then: {}", error.what());
  }
  try {
    saver.saveParts(log);
  } catch (const std::exception& error) {  // also LibTorch's exceptions
    log.error("and then: {}", error.what());
  }
}

int train(const TrainOptions& options, JsonLines* events) {
  RunOptions runOptions = options.run;
  startLog("cleave-client", options.quiet ? "warn" : runOptions.common.logLevel);
  if (!options.trace.empty()) {
    checkTracePath(options.trace);
    runOptions.traceSteps = options.traceSteps;
  }
  if (options.probe) runOptions.common.overrides.emplace_back("probe.first=true");
  // Opened first, because the address may be rejected.
  std::optional<LiveReport> dashboard;
  if (!options.dashboard.empty()) {
    dashboard.emplace(dashboardSettings({"--dashboard", options.dashboard}, options.anywhere));
  }
  PreparedRun run = prepareRun(runOptions, Purpose::training);
  const auto log = runLog(run.folder + "/log.txt", "");
  if (dashboard) {
    dashboard->show({{run.folder, ""}});
    log->info("dashboard: open {}", dashboard->url());
  }
  std::optional<nlohmann::json> probed;
  if (run.settings.probeFirst) probed = probeFirst(run, *log);
  const auto chosen = resolveAutoCodecs(run, *log);
  setComputeThreads(run.threads);
  ClientStage stage =
      withTorchErrors([&] { return ClientStage(run.plan.stage, run.settings.wait, *run.device); });

  Recorder recorder;
  ClientSession session(*run.device);
  const auto metrics = run.settings.metrics ? std::make_shared<Metrics>(Role::client) : nullptr;
  std::unique_ptr<HttpServer> http;
  if (metrics) http = serveMetrics(*run.settings.metrics, metrics);
  const wire::HelloOk ok = connectRun(run, session);
  const std::uint64_t steps = totalSteps(run.settings, *run.data.train);
  announce(run, ok, steps, *log, events);

  const auto files = std::make_shared<RunFiles>(recorder, run.folder,
                                                RunIdentity{run.hello.run_id(), ok.session()},
                                                metricNames(), run.settings.rotateBytes);
  files->observe(metrics);
  Progress progress({peoplesDescriptor(options), events, steps, metricNames()});
  Trainer trainer(run.settings, run.data, stage, session, *files, progress);
  session.start(
      run.plan, run.settings.errorEvery,
      clientActions(stage, run.threads, [&](const BodyDone& done) { return trainer.decide(done); }),
      false, files);
  if (metrics) {
    metrics->sampleWith([&] { return session.samples(recorder, run.server.tls.get()); });
  }

  std::optional<nlohmann::json> traced;
  trainer.afterEachStep([&](std::uint64_t step) {
    if (session.trace() == nullptr || step != session.trace()->window().last()) return;
    traced = writeRunTrace(options.trace, run, session);
    log->info("trace: {}", sentenceOfTrace(*traced));
  });

  ModelSaver saver(session, stage, run.plan, run.folder, ok.weights_allowed());
  trainer.afterEachEpoch([&] { saver.save(); });

  const auto finishFiles = [&] {
    StepRow last;
    last.phase = "bye";
    files->step(last, session.totals());
    recorder.flush();
  };
  TrainResult result;
  bool hasModel = false;
  const SteadyTime start = now();
  try {
    sendInitialWeights(run, stage, session);
    run.weights.clear();
    result = trainer.run();
    hasModel = saver.finish();
    if (!hasModel) {
      log->warn("the server's policy does not hand out the body: there is no model.safetensors");
      saver.saveParts(*log);
    }
    session.close("done");
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const bool interrupted = known != nullptr && known->code() == "interrupted";
    if (interrupted) {
      log->info("interrupted after {} of {} steps", trainer.steps(), steps);
    } else {
      log->error("the run failed: {}", error.what());
    }
    keepModel(saver, interrupted, run.folder, *log);
    session.close(interrupted ? "interrupted" : "failed");
    try {
      finishFiles();
      log->info("what was recorded so far: cleave-client report {}", run.folder);
      if (dashboard) dashboard->finish();
    } catch (const Error& second) {
      log->error("and then: {}", second.what());
    }
    throw;
  }
  const double seconds = secondsSince(start);
  finishFiles();
  nlohmann::json summary = summariseTraining(run, result, session.totals(), seconds, hasModel);
  if (probed) summary["probe"] = *probed;
  if (chosen) summary["codec_choice"] = *chosen;
  if (traced) summary["trace"] = *traced;
  writeFileDurably(run.folder + "/summary.json", summary.dump(2) + "\n");
  if (dashboard) dashboard->finish();
  log->info("done: {} steps in {}", result.steps, durationText(seconds));
  progress.end();
  flushLog();  // so that the summary is printed last
  tell(summary, options, events);
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
