// bench_step: runs one batch repeatedly through several sessions with a server, in turns, and
// prints the figures of each step as a line of JSON. Each session is a variant: the configuration
// with one value replaced, such as its codec or its schedule. The configuration can also replace
// computation by sleeping (the model `sleep`, docs/configuration.md), for the body alone or for all
// parts.
//
// One process holds all sessions, so variants are measured within the same seconds. Sessions are
// idle outside their turn: their server has no message to process.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/planning/step_prediction.h"
#include "client/run/prepare.h"
#include "client/train/trainer.h"
#include "common/core/clock.h"
#include "common/core/log.h"
#include "common/files/environment.h"
#include "common/program/program.h"
#include "common/run/device.h"
#include "tests/bench/processor_time.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  CommonOptions common;
  std::string server;
  std::vector<std::string> variants;
  std::string folder;
  int rounds = 20;
  int warmUp = 1;
  int steps = 3;
};

PreparedRun resolveVariant(const Options& options, std::size_t number) {
  RunOptions run;
  run.common = options.common;
  run.common.overrides.push_back(options.variants[number]);
  run.server = options.server;
  PreparedRun prepared = resolveRun(run, Purpose::training);
  prepared.folder = options.folder + "/" + std::to_string(number);
  std::filesystem::create_directories(prepared.folder);
  prepared.device = &openDevice(prepared.settings.device);
  return prepared;
}

class Variant {
 public:
  Variant(const Options& options, std::size_t number)
      : name_(options.variants[number]),
        prepared_(resolveVariant(options, number)),
        batch_(firstBatch(prepared_)),
        run_(prepared_),
        decider_(prepared_.settings, prepared_.trainSamples()),
        meter_(placesOf(prepared_.bodies)) {
    run_.connect();
    TrainRun::Options started;
    started.errorEvery = prepared_.settings.errorEvery;
    run_.start([this](const std::vector<BodyDone>& bodies) { return decide(bodies); }, started);
    run_.loadWeights();
  }
  ~Variant() { run_.close("done"); }
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  Json describe() const {
    return {{"variant", name_},
            {"model", prepared_.settings.model.name},
            {"batch", batch_.samples()},
            {"micro_batches", prepared_.plan.spec.microBatches},
            {"schedule", prepared_.plan.schedule->name},
            {"in_flight", prepared_.plan.inFlight},
            {"threads", prepared_.threads},
            {"server_threads", run_.answer().threads()}};
  }

  // The figures of one step. Bytes are wire bytes. Codec seconds are the client's unless the name
  // says otherwise.
  Json step() {
    const LinkTotals before = run_.session().totals();
    const double processorBefore = processorSeconds();
    const SteadyTime start = now();
    run_.stage().setLossScale(decider_.lossScale());
    run_.runBatch(Phase::train, ++steps_, batch_);
    Json row = {{"variant", name_}, {"step", steps_}, {"seconds", secondsSince(start)}};
    row["processor_seconds"] = processorSeconds() - processorBefore;
    const Coordinator& engine = run_.session().engine();
    for (const ActionKind kind : {ActionKind::headForward, ActionKind::tailStep,
                                  ActionKind::headBackward, ActionKind::update}) {
      row[std::string(actionName(kind))] = engine.ended().seconds[indexOf(kind)];
    }
    row["BodyForward"] = engine.bodyDone()->forwardSeconds;
    row["BodyBackward"] = engine.bodyDone()->backwardSeconds;
    row["BodyWeights"] = engine.bodyDone()->weightsSeconds;
    row["server_codec"] = engine.bodyDone()->codecSeconds;
    const LinkTotals after = run_.session().totals();
    row["encode"] = after.encodeSeconds - before.encodeSeconds;
    row["decode"] = after.decodeSeconds - before.decodeSeconds;
    row["bytes_up"] = after.up() - before.up();
    row["bytes_down"] = after.down() - before.down();
    if (const auto costs = meter_.measure(engine.ended().at, engine.ended().seconds,
                                          engine.reports(), after, run_.session().linkSpeeds());
        costs && costs->hasRates()) {
      row["rate_up"] = costs->body().rateUp;
      row["rate_down"] = costs->body().rateDown;
      row["latency"] = costs->body().latency;
      const StepBound bound = stepBound(*costs, run_.prepared().plan.schedule->splitsBackward);
      row["bound"] = bound.seconds;
      row["bottleneck"] = bottleneckName(bound.bottleneck);
    }
    return row;
  }

  // The measured times, for bench_simulate.
  Json times() const {
    Json json = {{"variant", name_}};
    if (meter_.mean()) json["times"] = toJson(*meter_.mean(), batch_.samples());
    return json;
  }

 private:
  StepDecision decide(const std::vector<BodyDone>& bodies) {
    return decider_.decide(bodies.front().step, run_.stage().headReport(), reportsOf(bodies),
                           run_.stage().tailReport());
  }

  const std::string name_;
  PreparedRun prepared_;
  const Batch batch_;
  TrainRun run_;
  StepDecider decider_;
  std::uint64_t steps_ = 0;
  StepMeter meter_;
};

int run(const Options& options) {
  startLog("bench_step", options.common.logLevel);
  std::vector<std::unique_ptr<Variant>> variants;
  for (std::size_t number = 0; number < options.variants.size(); ++number) {
    variants.push_back(std::make_unique<Variant>(options, number));
    std::cout << variants.back()->describe().dump() << std::endl;
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t turn = 0; turn < variants.size(); ++turn) {
      // The order alternates, so that a drift of the machine does not favour a variant.
      const std::size_t number = round % 2 == 0 ? turn : variants.size() - 1 - turn;
      for (int step = -options.warmUp; step < options.steps; ++step) {
        Json row = {{"round", round}, {"warm_up", step < 0}};
        row.update(variants[number]->step());
        std::cout << row.dump() << std::endl;
      }
    }
  }
  for (const auto& variant : variants) std::cout << variant->times().dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  CLI::App app{"Runs steps of several sessions in turn, and prints the figures of each step",
               "bench_step"};
  app.footer(
      "Example without computation:\n  bench_step --config tests/bench/mobilenet_v2.yaml "
      "--server 127.0.0.1:4800 --folder /tmp/steps\n    --set 'model={name: sleep, of: "
      "mobilenet_v2, F1: 6, T3: 1, "
      "B1: 11, F2: 2, B2: 4}' --set codec=block:bits=4\n    --variant train.schedule=priority "
      "--variant "
      "train.schedule=gpipe");
  cleave::Options options;
  cleave::addCommonOptions(app, options.common, true);
  app.add_option("--server", options.server, "HOST:PORT")->required();
  app.add_option("--variant", options.variants,
                 "A session's difference from the configuration, as KEY=VALUE; repeatable")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--folder", options.folder, "Folder for the records of the sessions")->required();
  app.add_option("--rounds", options.rounds, "Turns of each session (20)");
  app.add_option("--warm-up", options.warmUp, "Steps at the start of each turn (1)");
  app.add_option("--steps", options.steps, "Steps per turn after the warm-up (3)");
  return cleave::runProgram(app, argc, argv, [&] { return cleave::run(options); });
}
