// cleave-client simulate: predicts the duration of a step on a given link with each schedule. The
// times of the step's actions are measured on client and server, or read from a file.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/train/prepare.h"
#include "client/train/run_trace.h"
#include "client/train/step_times.h"
#include "client/train/temporary_folder.h"
#include "client/train/trainer.h"
#include "common/core/durable.h"
#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/record.h"
#include "common/core/terminal.h"
#include "common/core/units.h"
#include "common/predict/simulator.h"
#include "common/record/trace_file.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

// ---- Measuring ----

// Trains a few steps through the server, exactly like `train`.
StepTimes measure(const SimulateOptions& options, std::uint32_t microBatches) {
  const TemporaryFolder folder;
  RunOptions runOptions = options.run;
  runOptions.runDir = folder.path() + "/run";
  std::vector<std::string>& overrides = runOptions.common.overrides;
  if (microBatches > 0) overrides.push_back("train.micro_batches=" + std::to_string(microBatches));
  overrides.push_back("train.max_steps=" + std::to_string(options.steps + 1));
  overrides.emplace_back("train.in_flight=0");
  overrides.emplace_back("eval.every=0");
  PreparedRun prepared = prepareRun(runOptions, Purpose::measurement);
  prepared.settings.epochs = options.steps + 1;
  TrainRun run(prepared);
  run.connect();
  Progress unseen({});
  Trainer trainer(run, unseen);
  trainer.start({});
  TrainResult result;
  try {
    result = trainer.run();
    run.close("done");
  } catch (...) {
    run.close("failed");
    throw;
  }
  if (!result.costs) {
    throw RunError("not-measured",
                   "no step could be measured, because the data has too few batches",
                   "give more samples, or a smaller train.batch");
  }
  return {*result.costs, prepared.settings.batch};
}

// The measurement with this number of micro-batches. If there is none, the measurement with the
// nearest number, with seconds and bytes scaled in proportion.
StepTimes scaled(const std::vector<StepTimes>& measurements, std::uint32_t microBatches) {
  const auto distance = [&](const StepTimes& one) {
    return std::abs(std::log(static_cast<double>(microBatches) / one.costs.microBatches));
  };
  const StepTimes& nearest = *std::min_element(
      measurements.begin(), measurements.end(),
      [&](const StepTimes& a, const StepTimes& b) { return distance(a) < distance(b); });
  return {nearest.costs.inMicroBatches(microBatches), nearest.batch};
}

// ---- Simulating ----

struct Prediction {
  std::uint32_t microBatches = 0;
  std::string schedule;
  double seconds = 0;
};

struct Case {
  StepTimes measurement;
  bool isScaled = false;
  StepBound bound;
  std::vector<Prediction> predictions;  // one per schedule
  double bestOrder = 0;                 // step seconds with the best order found by a search
};

Case simulate(const StepTimes& measurement, bool isScaled) {
  Case result{measurement, isScaled, stepBound(measurement.costs), {}, 0};
  const StepCosts& costs = measurement.costs;
  for (const Schedule& schedule : scheduleTable()) {
    const Policy policy = policyOf(schedule, schedule.defaultInFlight(costs.microBatches));
    result.predictions.push_back(
        {costs.microBatches, std::string(schedule.name), simulateStep(costs, policy).seconds});
  }
  result.bestOrder = bestStepSeconds(costs);
  return result;
}

constexpr std::pair<Span::Lane, const char*> kLanes[] = {{Span::Lane::client, "client"},
                                                         {Span::Lane::clientCodec, "client codec"},
                                                         {Span::Lane::uplink, "uplink"},
                                                         {Span::Lane::downlink, "downlink"},
                                                         {Span::Lane::serverCodec, "server codec"},
                                                         {Span::Lane::server, "server"}};

// The letters of a timeline.
constexpr const char* kLegend =
    "  F HeadForward or BodyForward, T TailStep, H HeadBackward, B BodyBackward;\n"
    "  e encode, d decode; a activation, g gradient; . idle\n";

std::size_t timelineWidth() {
  constexpr std::size_t kUsual = 83, kMin = 30, kNames = 16;
  if (!isLiveTerminal(STDOUT_FILENO)) return kUsual;
  const std::size_t columns = terminalColumns(STDOUT_FILENO);
  return columns < kNames + kMin ? kMin : std::min(kUsual, columns - kNames);
}

// One line per lane, one letter per time slot; see kLegend.
std::string timelineText(const SimulatedStep& step) {
  const std::size_t width = timelineWidth();
  std::string text;
  for (const auto& [lane, name] : kLanes) {
    std::string line(width, '.');
    for (const Span& span : step.timeline) {
      if (span.lane != lane) continue;
      const auto column = [&](double time) {
        return std::min(width - 1,
                        static_cast<std::size_t>(time / step.seconds * static_cast<double>(width)));
      };
      char letter = span.what[0];
      if (span.what.starts_with("Head")) letter = span.what[4] == 'F' ? 'F' : 'H';
      if (span.what.starts_with("Body")) letter = span.what[4] == 'F' ? 'F' : 'B';
      for (std::size_t c = column(span.begin); c <= column(span.end); ++c) {
        if (line[c] == '.' || c > column(span.begin)) line[c] = letter;
      }
    }
    if (line.find_first_not_of('.') == std::string::npos) continue;
    text += fmt::format("  {:<13}{}\n", name, line);
  }
  return text + fmt::format("  {:<13}0{:>{}}\n", "", fmt::format("{:.1f} ms", step.seconds * 1e3),
                            width - 1);
}

SimulatedStep timelineOf(const Case& one, const Schedule& schedule) {
  const StepCosts& costs = one.measurement.costs;
  return simulateStep(costs, policyOf(schedule, schedule.defaultInFlight(costs.microBatches)),
                      true);
}

// The trace has one process for each combination of micro-batches and schedule, with one track per
// lane.
std::string traceText(const std::vector<Case>& cases) {
  TraceFile file;
  for (const Case& one : cases) {
    for (const Schedule& schedule : scheduleTable()) {
      const int process = file.addProcess(
          fmt::format("{}, {} micro-batches", schedule.name, one.measurement.costs.microBatches));
      std::map<Span::Lane, TraceTrack> tracks;
      for (const auto& [lane, name] : kLanes) tracks[lane] = file.addTrack(process, name);
      const auto nanoseconds = [](double time) { return std::llround(time * 1e9); };
      for (const Span& span : timelineOf(one, schedule).timeline) {
        file.slice(tracks.at(span.lane), "simulated", span.what, nanoseconds(span.begin),
                   nanoseconds(span.end));
      }
    }
  }
  return file.text({{"software", softwareVersion()}});
}

void printCosts(const Case& one) {
  const StepCosts& costs = one.measurement.costs;
  const auto ms = [&](ActionKind kind) { return 1e3 * costs.of(kind); };
  double codec = 0;
  double up = 0, down = 0;
  for (const auto& [flow, tensor] : costs.flows) {
    codec += 1e3 * (tensor.encodeSeconds + tensor.decodeSeconds);
    (costs.body().place.isUp(flow) ? up : down) += tensor.bytes;
  }
  const std::string text = fmt::format(
      "\n{} micro-batches, {}; each takes HeadForward {:.2f}, TailStep {:.2f}, HeadBackward "
      "{:.2f},\nBodyForward {:.2f}, BodyBackward {:.2f}, codecs {:.2f} ms, and transfers {} up, {} "
      "down\n",
      costs.microBatches, one.isScaled ? "scaled from other measurements" : "measured",
      ms(ActionKind::headForward), ms(ActionKind::tailStep), ms(ActionKind::headBackward),
      ms(ActionKind::bodyForward), ms(ActionKind::bodyBackward), codec, bytesText(up),
      bytesText(down));
  std::cout << wrappedFor(STDOUT_FILENO, text, 2);
}

void printCase(const Case& one, bool withTimeline) {
  printCosts(one);
  std::cout << fmt::format("  {:<18}{:>12}{:>14}{:>18}{:>12}\n", "schedule", "step, ms",
                           "step / bound", "step / best order", "samples/s");
  const auto row = [&](const std::string& name, double seconds) {
    std::cout << fmt::format("  {:<18}{:>12.1f}{:>14.3f}{:>18.3f}{:>12.0f}\n", name, 1e3 * seconds,
                             seconds / one.bound.seconds, seconds / one.bestOrder,
                             one.measurement.batch / seconds);
  };
  for (const Prediction& prediction : one.predictions) row(prediction.schedule, prediction.seconds);
  row("best order found", one.bestOrder);
  std::cout << fmt::format("  bound {:.1f} ms: {}\n", 1e3 * one.bound.seconds,
                           bottleneckName(one.bound.bottleneck));
  if (!withTimeline) return;
  for (const Schedule& schedule : scheduleTable()) {
    std::cout << "\n  " << schedule.name << "\n" << timelineText(timelineOf(one, schedule));
  }
  std::cout << "\n" << wrappedFor(STDOUT_FILENO, kLegend, 2);
}

Json toJson(const Case& one) {
  Json json = toJson(one.measurement);
  json["scaled"] = one.isScaled;
  json["bound_seconds"] = one.bound.seconds;
  json["bottleneck"] = bottleneckName(one.bound.bottleneck);
  json["best_order_seconds"] = one.bestOrder;
  for (const Prediction& prediction : one.predictions) {
    json["schedules"][prediction.schedule] = {
        {"seconds", prediction.seconds}, {"over_bound", prediction.seconds / one.bound.seconds}};
  }
  return json;
}

struct LinkOfOptions {
  double rateUp = 0, rateDown = 0;  // bytes per second
  Nanoseconds latency{0};
  double queueBytes = 0;
  double latencySeconds() const { return std::chrono::duration<double>(latency).count(); }
};

LinkOfOptions linkOf(const SimulateOptions& options) {
  const auto rate = [&](const char* flag, const std::string& own) {
    const bool isOwn = !own.empty();
    const double value = parseRate({isOwn ? flag : "--rate", isOwn ? own : options.rate});
    // 0 means unlimited; this rate is faster than any memory.
    return value > 0 ? value : 1e12;
  };
  return {rate("--up-rate", options.upRate), rate("--down-rate", options.downRate),
          parseTime({"--latency", options.latency}),
          static_cast<double>(parseSize({"--queue", options.queue}))};
}

}  // namespace

int simulateCommand(const SimulateOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  const LinkOfOptions link = linkOf(options);
  if (!options.trace.empty()) checkTracePath(options.trace);
  std::vector<StepTimes> measurements;
  if (!options.times.empty()) {
    measurements = readTimes(options.times);
  } else {
    if (options.run.common.config.empty()) {
      throw UsageError("no-config", "neither --config nor --times is given",
                       "give --config FILE to measure its model, or --times FILE");
    }
    const std::vector<std::uint32_t> asked =
        options.microBatches.empty() ? std::vector<std::uint32_t>{0} : options.microBatches;
    for (const std::uint32_t number : asked) measurements.push_back(measure(options, number));
  }
  if (!options.writeTimes.empty()) writeTimes(options.writeTimes, measurements);

  std::vector<std::uint32_t> numbers = options.microBatches;
  if (numbers.empty()) {
    for (const StepTimes& one : measurements) numbers.push_back(one.costs.microBatches);
  }
  std::vector<Case> cases;
  for (const std::uint32_t number : numbers) {
    StepTimes one = scaled(measurements, number);
    if (number > one.batch) {
      throw UsageError("bad-micro-batches",
                       fmt::format("--micro-batches {}: a batch has {} samples", number, one.batch),
                       fmt::format("give a number in 1…{}", one.batch));
    }
    one.costs.body().rateUp = link.rateUp;
    one.costs.body().rateDown = link.rateDown;
    one.costs.body().latency = link.latencySeconds();
    one.costs.body().queueBytes = link.queueBytes;
    const bool isMeasured =
        std::any_of(measurements.begin(), measurements.end(),
                    [&](const StepTimes& m) { return m.costs.microBatches == number; });
    cases.push_back(simulate(one, !isMeasured));
  }
  const Prediction* best = nullptr;
  for (const Case& one : cases) {
    for (const Prediction& prediction : one.predictions) {
      if (best == nullptr || prediction.seconds < best->seconds) best = &prediction;
    }
  }
  if (!options.trace.empty()) writeFileDurably(options.trace, traceText(cases));
  if (options.run.json) {
    Json json = {{"rate_up", link.rateUp},
                 {"rate_down", link.rateDown},
                 {"latency_seconds", link.latencySeconds()},
                 {"queue_bytes", link.queueBytes},
                 {"cases", Json::array()},
                 {"best",
                  {{"micro_batches", best->microBatches},
                   {"schedule", best->schedule},
                   {"seconds", best->seconds}}}};
    for (const Case& one : cases) json["cases"].push_back(toJson(one));
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  std::cout << fmt::format("link: {} up, {} down, {} one way\n", rateText(link.rateUp),
                           rateText(link.rateDown), durationText(link.latency));
  for (const Case& one : cases) printCase(one, options.timeline);
  std::cout << fmt::format("\nbest: {} with {} micro-batches, {:.1f} ms per step\n", best->schedule,
                           best->microBatches, 1e3 * best->seconds);
  return 0;
}

void addSimulateCommand(CLI::App& app, SimulateOptions& options, std::function<int()>& command) {
  CLI::App* simulate = app.add_subcommand("simulate",
                                          "Predicts the step time of each schedule on a given "
                                          "link, from times measured on client and server");
  addRunOptions(*simulate, options.run);
  simulate->remove_option(simulate->get_option("--run-dir"));
  simulate->get_option("--config")->required(false);  // not required with --times
  simulate
      ->add_option("--rate", options.rate,
                   "Rate of the link in each direction, such as 1Gbit/s, 20MB/s or unlimited")
      ->type_name("RATE")
      ->required();
  simulate->add_option("--up-rate", options.upRate, "Rate from client to server, if it differs")
      ->type_name("RATE");
  simulate->add_option("--down-rate", options.downRate, "Rate from server to client, if it differs")
      ->type_name("RATE");
  simulate->add_option("--latency", options.latency, "One-way latency, such as 10ms or 100us")
      ->type_name("TIME")
      ->required();
  simulate
      ->add_option(
          "--queue", options.queue,
          "Send buffer of the link per direction, such as 128KiB; urgent tensors wait behind "
          "the bytes in it")
      ->type_name("SIZE")
      ->default_str("0B");
  simulate
      ->add_option(
          "--micro-batches", options.microBatches,
          "Number of micro-batches to predict for; repeatable; default: the configured number")
      ->type_name("N")
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, 65536u));
  simulate->add_option("--steps", options.steps, "Steps to measure, after one warm-up step")
      ->default_str("4")
      ->check(CLI::Range(1u, 1000u));
  simulate
      ->add_option("--times", options.times,
                   "Uses the times in this file, stored by --write-times, instead of measuring")
      ->type_name("FILE");
  simulate->add_option("--write-times", options.writeTimes, "Stores the measured times")
      ->type_name("FILE");
  simulate->add_flag("--timeline", options.timeline,
                     "Draws the actions of both sides over time, for each schedule");
  simulate
      ->add_option(
          "--trace", options.trace,
          "Writes the timeline for ui.perfetto.dev or chrome://tracing, like train --trace")
      ->type_name("FILE");
  simulate->footer(
      "Example:\n  cleave-client simulate --config configs/fashion_mnist.yaml --rate 100Mbit/s "
      "--latency 10ms \\\n    --micro-batches 4 --micro-batches 8 --timeline\n\n"
      "Without --server, client and server share this machine, so both are slower than on two "
      "machines.");
  simulate->callback([&] { command = [&] { return simulateCommand(options); }; });
}

}  // namespace cleave
