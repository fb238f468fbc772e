// cleave-client train: trains a model, and leaves its weights and records.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/advice.h"
#include "client/commands.h"
#include "client/dashboard.h"
#include "client/prepare.h"
#include "client/probe.h"
#include "client/probe_report.h"
#include "client/report/live_report.h"
#include "client/run_trace.h"
#include "client/trainer.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "daemon/action_tables.h"
#include "daemon/torch_errors.h"

namespace cleave {
namespace {

// Head, body and tail in model order, as one file.
void writeModel(const std::string& path, const ClientStage& stage, const Blob& body) {
  std::vector<NamedTensor> tensors = weightsOf(stage.head());
  for (NamedTensor& tensor : fromSafetensors(body.bytes, "weights/body"))
    tensors.push_back(std::move(tensor));
  for (NamedTensor& tensor : weightsOf(stage.tail())) tensors.push_back(std::move(tensor));
  const std::vector<std::byte> bytes = toSafetensors(tensors);
  writeFileDurably(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

nlohmann::json summarise(const PreparedRun& run, const TrainResult& result,
                         const LinkTotals& totals, double seconds, bool hasModel) {
  nlohmann::json summary;
  summary["run"] = run.hello.run_id();
  summary["folder"] = run.folder;
  summary["steps"] = result.steps;
  summary["seconds"] = seconds;
  summary["images_per_second"] = static_cast<double>(result.samples) / result.trainSeconds;
  if (result.lastEval) {
    const auto values = means(*result.lastEval);
    const auto names = metricNames();
    for (std::size_t index = 0; index < names.size(); ++index) {
      if (values[index]) summary["eval"][names[index]] = *values[index];
    }
    summary["eval"]["best_top1"] = *result.bestTop1;
  }
  const double wire = static_cast<double>(totals.wireUp + totals.wireDown);
  summary["bytes_up"] = totals.up();
  summary["bytes_down"] = totals.down();
  summary["ratio"] = wire / static_cast<double>(totals.rawUp + totals.rawDown);
  summary["mean_up_bytes_per_second"] = static_cast<double>(totals.up()) / seconds;
  summary["mean_down_bytes_per_second"] = static_cast<double>(totals.down()) / seconds;
  summary["peak_up_bytes_per_second"] = totals.peakUp;
  summary["peak_down_bytes_per_second"] = totals.peakDown;
  if (result.costs && result.costs->hasRates()) {
    const StepBound bound = stepBound(*result.costs);
    summary["bound"] = {{"seconds_a_step", bound.seconds},
                        {"over_bound", result.overBound},
                        {"bottleneck", bottleneckName(bound.bottleneck)},
                        {"rate_up", result.costs->rateUp},
                        {"rate_down", result.costs->rateDown},
                        {"latency_seconds", result.costs->latency},
                        {"advice", whatWouldHelp(*result.costs, run.plan, run.settings.batch)}};
  }
  summary["model"] =
      hasModel ? nlohmann::json(run.folder + "/model.safetensors") : nlohmann::json();
  return summary;
}

// Into the run's folder too.
nlohmann::json probeFirst(const PreparedRun& run, spdlog::logger& log) {
  ProbeOptions options;
  options.seconds = run.settings.probeSeconds;
  options.retrySeconds = run.settings.retrySeconds;
  const ProbeResult result = probeLink(run.server, options);
  writeFileDurably(run.folder + "/probe.csv", probeCsv(result, run.hello.run_id()));
  log.info("link: {}", sentenceOf(result));
  return probeJson(result);
}

void printSummary(const nlohmann::json& summary) {
  const auto number = [&](const char* key) { return summary.at(key).get<double>(); };
  std::cout << "\n";
  if (summary.contains("eval")) {
    const auto& eval = summary.at("eval");
    std::cout << fmt::format("accuracy    {:.2f} % top-1 (best epoch {:.2f} %), loss {:.4f}\n",
                             100 * eval.at("top1").get<double>(),
                             100 * eval.at("best_top1").get<double>(),
                             eval.at("loss").get<double>());
  }
  std::cout << fmt::format("time        {} for {} steps, {:.0f} images/s\n",
                           clockText(number("seconds")), summary.at("steps").get<std::uint64_t>(),
                           number("images_per_second"));
  std::cout << fmt::format("bytes       {} up, {} down; {:.4f} of the raw tensors' size\n",
                           bytesText(number("bytes_up")), bytesText(number("bytes_down")),
                           number("ratio"));
  std::cout << fmt::format("bandwidth   mean {}/s up, {}/s down; peak {}/s up, {}/s down\n",
                           bytesText(number("mean_up_bytes_per_second")),
                           bytesText(number("mean_down_bytes_per_second")),
                           bytesText(number("peak_up_bytes_per_second")),
                           bytesText(number("peak_down_bytes_per_second")));
  if (summary.contains("probe")) {
    std::cout << "link        " << summary.at("probe").at("sentence").get<std::string>() << "\n";
  }
  if (summary.contains("bound")) {
    const auto& bound = summary.at("bound");
    std::cout << fmt::format("bound       a step took {:.2f} times the least possible {:.1f} ms\n",
                             bound.at("over_bound").get<double>(),
                             1e3 * bound.at("seconds_a_step").get<double>())
              << "held back   " << bound.at("advice").get<std::string>() << "\n";
  }
  if (summary.contains("trace")) {
    std::cout << "trace       " << sentenceOfTrace(summary.at("trace")) << "\n";
  }
  std::cout << "files       " << summary.at("folder").get<std::string>()
            << ": transfers.csv, steps.csv, epochs.csv, summary.json, config.yaml, "
               "environment.json, log.txt"
            << (summary.contains("probe") ? ", probe.csv" : "")
            << (summary.at("model").is_null() ? "" : ", model.safetensors") << "\n"
            << "charts      cleave-client report " << summary.at("folder").get<std::string>()
            << std::endl;
}

// Where what people look at goes; -1: nowhere. Results and events have stdout to themselves.
int peoplesDescriptor(const TrainOptions& options) {
  if (options.quiet) return -1;
  return options.run.json || options.jsonLines ? STDERR_FILENO : STDOUT_FILENO;
}

// `events`: null where no program listens.
int train(const TrainOptions& options, JsonLines* events) {
  RunOptions runOptions = options.run;
  startLog("cleave-client", options.quiet ? "warn" : runOptions.common.logLevel);
  if (!options.trace.empty()) {
    checkTracePath(options.trace);
    runOptions.traceSteps = options.traceSteps;
  }
  if (options.probe) runOptions.common.overrides.emplace_back("probe.first=true");
  // Before anything starts: it may be refused.
  std::optional<LiveReport> dashboard;
  if (!options.dashboard.empty()) {
    dashboard.emplace(dashboardSettings({"--dashboard", options.dashboard}, options.anywhere));
  }
  PreparedRun run = prepareRun(runOptions, false, false);
  const auto log = runLog(run.folder + "/log.txt", "");
  if (dashboard) {
    dashboard->show({{run.folder, ""}});
    log->info("dashboard: open {}", dashboard->url());
  }
  std::optional<nlohmann::json> probed;
  if (run.settings.probeFirst) probed = probeFirst(run, *log);
  setComputeThreads(run.threads);
  StageWait wait = run.settings.wait;
  ClientStage stage =
      withTorchErrors([&] { return ClientStage(run.plan.stage, wait, *run.device); });

  Recorder recorder;
  ClientSession session(*run.device);
  const auto metrics = run.settings.metrics ? std::make_shared<Metrics>(Role::client) : nullptr;
  std::unique_ptr<HttpServer> http;
  if (metrics) http = serveMetrics(*run.settings.metrics, metrics);
  const wire::HelloOk ok = session.connect(run.server, run.hello, run.settings.retrySeconds);
  log->info(
      "run {}: connected to {} ({}), session {}; computing on {} here, {} there; {} micro-batches "
      "in flight",
      run.hello.run_id(), run.server.text(), ok.software(), ok.session(), run.settings.device,
      ok.device(), ok.in_flight());
  log->info("threads: {}; the server computes with {}", run.threadsText, ok.threads());

  const auto files = std::make_shared<RunFiles>(recorder, run.folder,
                                                RunIdentity{run.hello.run_id(), ok.session()},
                                                metricNames(), run.settings.rotateBytes);
  files->observe(metrics);
  const std::uint64_t steps = totalSteps(run.settings, *run.data.train);
  if (events != nullptr) {
    events->write("begin", {{"run", run.hello.run_id()},
                            {"folder", run.folder},
                            {"server", run.server.text()},
                            {"steps", steps}});
  }
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

  const auto finishFiles = [&] {
    StepRow last;
    last.phase = "bye";
    files->step(last, session.totals());
    recorder.flush();
    if (dashboard) dashboard->finish();
  };
  TrainResult result;
  bool hasModel = false;
  const SteadyTime start = now();
  try {
    sendInitialWeights(run, stage, session);
    run.weights.clear();
    result = trainer.run();
    if (ok.weights_allowed()) {
      writeModel(run.folder + "/model.safetensors", stage, session.fetch(Flow::weightsBody));
      hasModel = true;
    } else {
      log->warn("the server's policy does not hand out the body: there is no model.safetensors");
    }
    session.close("done");
  } catch (const std::exception& error) {
    log->error("the run failed: {}", error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    session.close(known != nullptr && known->code() == "interrupted" ? "interrupted" : "failed");
    try {
      finishFiles();
    } catch (const Error& second) {
      log->error("and then: {}", second.what());
    }
    throw;
  }
  const double seconds = secondsSince(start);
  finishFiles();
  nlohmann::json summary = summarise(run, result, session.totals(), seconds, hasModel);
  if (probed) summary["probe"] = *probed;
  if (traced) summary["trace"] = *traced;
  writeFileDurably(run.folder + "/summary.json", summary.dump(2) + "\n");
  log->info("done: {} steps in {}", result.steps, clockText(seconds));
  progress.end();
  flushLog();  // what comes last is the summary
  if (events != nullptr) {
    events->write("done", summary);
  } else if (runOptions.json) {
    std::cout << summary.dump(2) << std::endl;
  } else {
    printSummary(summary);
  }
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
                            {"fix", error.fix()},
                            {"exit_code", error.exitCode()}});
    throw;
  }
}

}  // namespace cleave
