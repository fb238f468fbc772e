// Advice: the suggested settings are valid in a configuration, the gains exceed the steps' spread,
// and disadvantages are stated. Also the text of the summary.
#include "client/planning/advice.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "client/commands/train_summary.h"
#include "client/config/settings.h"

using namespace cleave;

namespace {

Config configuration(const std::vector<std::string>& overrides) {
  return Config::load(std::string(CLEAVE_SOURCE_DIR) + "/configs/synthetic.yaml", overrides);
}

struct Run {
  explicit Run(const std::vector<std::string>& overrides) {
    Config config = configuration(overrides);
    settings = readClientSettings(config);
    const Datasets data = openDatasets(settings.data);
    const RunSpec spec = makeRunSpec(settings, data);
    plan = planClient(spec, innerCutsOf(settings.cutPositions()), nullptr);
    for (const RunSpec& body : bodyRunSpecs(spec, settings, *data.train, nullptr)) {
      bodies.push_back(planRun(body));
    }
  }

  Advice advise(const StepCosts& costs, Bottleneck bottleneck, double spread = 0) const {
    return adviseOn({costs, bottleneck, 0, spread, 0, 20}, plan, bodies, settings);
  }

  ClientSettings settings;
  RunPlan plan;
  std::vector<RunPlan> bodies;
};

// Measured seconds per action and bytes per tensor; coding takes no time.
StepCosts costsOf(const Run& run, double client, double server, double bytes, double rate) {
  StepCosts costs;
  costs.microBatches = run.plan.spec.microBatches;
  for (const ActionKind kind :
       {ActionKind::headForward, ActionKind::tailStep, ActionKind::headBackward}) {
    costs.of(kind) = client;
  }
  costs.bodies = {{{}, server, server, rate, rate, 0, 0}};
  costs.flows = FlowMap<FlowCosts>(Place{}.flows(), {bytes, 0, 0});
  return costs;
}

// A run with the codec `none` on a slow link.
StepCosts slowLink(const Run& run) { return costsOf(run, 1e-5, 1e-5, 8 * 32 * 4, 1e3); }

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("advice for a lossier codec than the run's own mentions the cost in accuracy") {
  const Run raw({"codec=none"});
  const Advice lossy = raw.advise(slowLink(raw), Bottleneck::uplink);
  CHECK(lossy.settings == Texts{"codec=block:bits=4"});
  CHECK(lossy.saving > 0.5);
  CHECK_THAT(lossy.caveat, Catch::Matchers::Contains("accuracy"));
  CHECK_THAT(lossy.sentence, Catch::Matchers::Contains("--set codec=block:bits=4") &&
                                 Catch::Matchers::EndsWith(lossy.caveat));

  // If coding is the bottleneck, `none` is advised, which costs no accuracy.
  const Run packed({"codec=block:bits=4"});
  StepCosts costs = costsOf(packed, 1e-5, 1e-5, 100, 1e9);
  for (auto& [flow, tensor] : costs.flows) tensor.encodeSeconds = tensor.decodeSeconds = 0.05;
  const Advice exact = packed.advise(costs, Bottleneck::codec);
  CHECK(exact.settings == Texts{"codec=none"});
  CHECK(exact.caveat.empty());
}

TEST_CASE("among codecs with similar savings, the less lossy one is advised") {
  const Run packed({"codec=bf16"});
  // Both save more than 30 %, with a difference below the spread.
  StepCosts costs = costsOf(packed, 1e-3, 1e-3, 8 * 32 * 2, 1e5);
  const Advice advice = packed.advise(costs, Bottleneck::uplink, 0.3);
  INFO(advice.sentence);
  CHECK(advice.settings == Texts{"codec=block:bits=8"});
}

TEST_CASE("a setting that saves less than the steps' spread is not advised") {
  const Run run({"train.micro_batches=1"});
  StepCosts costs = costsOf(run, 5e-3, 5e-3, 100, 1e9);
  const Advice steady = run.advise(costs, Bottleneck::clientCompute, 0.01);
  CHECK(steady.settings == Texts{"train.micro_batches=2"});
  CHECK(steady.saving > 0.1);
  const Advice busy = run.advise(costs, Bottleneck::clientCompute, steady.saving + 0.01);
  CHECK(busy.settings.empty());
  CHECK(busy.caveat.empty());
  CHECK((busy.saving == 0 || busy.saving > steady.saving + 0.01));
  const Advice wild = run.advise(costs, Bottleneck::clientCompute, 1);
  CHECK(wild.settings.empty());
  CHECK(wild.saving == 0);
  CHECK_FALSE(wild.sentence.empty());
}

TEST_CASE("no advice is given if a step took far longer than its simulation") {
  const Run run({"train.micro_batches=1"});
  const StepCosts costs = costsOf(run, 5e-3, 5e-3, 100, 1e9);
  const Advice steady = run.advise(costs, Bottleneck::clientCompute);
  const Advice slow =
      adviseOn({costs, Bottleneck::clientCompute, 10, 0, 0}, run.plan, run.bodies, run.settings);
  CHECK(steady.saving > 0.1);
  CHECK(slow.settings.empty());
}

TEST_CASE("with two servers, advice applies to the flows of all cuts") {
  const Run raw({"codec=none", "model.cuts=[1, 3, 5]"});
  StepCosts costs = slowLink(raw);
  costs.bodies.push_back(costs.body());
  costs.bodies[0].place = {0, 1};
  costs.bodies[1].place = {1, 2};
  costs.flows = {};
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) costs.flows[flow] = {1, 0, 0};
  }
  // Only the tensors between the two bodies are large.
  costs.flows[activationAt(1)].bytes = costs.flows[gradientAt(1)].bytes = 8 * 32 * 4;
  const Advice lossy = raw.advise(costs, Bottleneck::uplink);
  INFO(lossy.sentence);
  CHECK(lossy.settings == Texts{"codec=block:bits=4"});

  // With slow servers, no codec helps. More micro-batches are not possible: the batch has 32
  // samples.
  const Run most(
      {"codec=none", "model.cuts=[1, 3, 5]", "train.batch=32", "train.micro_batches=32"});
  costs.microBatches = 32;
  for (auto& [flow, tensor] : costs.flows) tensor.bytes = 1;
  for (BodyCosts& body : costs.bodies) {
    body.rateUp = body.rateDown = 1e9;
    body.forward = body.backward = 0.1;
  }
  const Advice servers = most.advise(costs, Bottleneck::serverCompute);
  CHECK_THAT(servers.sentence, Catch::Matchers::Contains("servers twice as fast"));
}

TEST_CASE("every advised setting is accepted by the configuration") {
  std::size_t advised = 0;
  std::vector<std::string> kinds;
  for (const Texts& overrides : std::vector<Texts>{
           {},
           {"codec=none"},
           {"train.schedule=gpipe", "train.micro_batches=8"},
           {"train.schedule=gpipe", "train.micro_batches=4", "train.in_flight=4"},
           {"train.schedule=1f1b", "train.in_flight=2"},
           {"train.in_flight=1"},
           {"train.micro_batches=1"},
           {"train.micro_batches=32"},
           {"model={name: small_cnn}", "data.shape=[1, 28, 28]", "train.micro_batches=2"}}) {
    const Run run(overrides);
    StepCosts slowCodec = costsOf(run, 1e-3, 1e-3, 1e3, 1e9);
    for (auto& [flow, tensor] : slowCodec.flows) tensor.encodeSeconds = 0.1;
    for (const StepCosts& costs : {slowLink(run), costsOf(run, 5e-3, 5e-3, 100, 1e9),
                                   costsOf(run, 1e-3, 2e-2, 1e4, 1e7), slowCodec}) {
      for (std::size_t b = 0; b < kBottlenecks; ++b) {
        const Advice advice = run.advise(costs, static_cast<Bottleneck>(b));
        INFO(advice.sentence);
        CHECK_FALSE(advice.sentence.empty());
        Texts all = overrides;
        all.insert(all.end(), advice.settings.begin(), advice.settings.end());
        // The advised settings can be read and planned.
        CHECK_NOTHROW(Run(all));
        for (const std::string& setting : advice.settings) {
          CHECK_THAT(advice.sentence, Catch::Matchers::Contains("--set " + setting));
          kinds.push_back(setting.substr(0, setting.find('=')));
          ++advised;
        }
      }
    }
  }
  CHECK(advised > 0);
  for (const char* key : {"codec", "train.schedule", "train.in_flight", "train.micro_batches"}) {
    INFO(key);
    CHECK(std::find(kinds.begin(), kinds.end(), key) != kinds.end());
  }
}

TEST_CASE(
    "the spread of steps ignores single outliers, and is unknown if there are only a few steps") {
  std::vector<float> seconds(100, 1);
  CHECK(stepSpread(seconds) == 0);
  seconds[7] = 1000;
  CHECK(stepSpread(seconds) == 0);
  for (std::size_t j = 0; j < seconds.size(); ++j) seconds[j] = 1 + 0.01F * static_cast<float>(j);
  CHECK(stepSpread(seconds).value() == Approx(0.4 / 1.5).epsilon(0.02));
  CHECK_FALSE(stepSpread(std::vector<float>(9, 1)));
  const Run run({});
  const MeasuredSteps few{costsOf(run, 1, 1, 1, 1), Bottleneck::uplink, 0, std::nullopt, 0, 9};
  CHECK(
      adviseOn(few, run.plan, run.bodies, run.settings).sentence ==
      "advice requires 10 steps with a full batch and a measured rate of the link; this run has 9");
}

TEST_CASE("the summary of a run leaves out a peak below the mean") {
  nlohmann::json summary = {{"mean_up_bytes_per_second", 634e3},
                            {"mean_down_bytes_per_second", 500e3},
                            {"peak_up_bytes_per_second", 386e3},
                            {"peak_down_bytes_per_second", 700e3}};
  CHECK(bandwidthText(summary) == "bandwidth   tensors: mean 634 kB/s up, 500 kB/s down\n");
  summary["peak_up_bytes_per_second"] = 800e3;
  CHECK(bandwidthText(summary) ==
        "bandwidth   tensors: mean 634 kB/s up, 500 kB/s down; connection: peak 800 kB/s up, 700 "
        "kB/s down\n");
}
