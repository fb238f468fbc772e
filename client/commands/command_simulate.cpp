// cleave-client simulate: predicts the duration of a step on a given link with each schedule. The
// times of the step's actions are measured on client and server, or come from profiles.

#include <spdlog/fmt/fmt.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "client/commands/commands.h"
#include "client/planning/auto_codec.h"
#include "client/planning/planner.h"
#include "client/run/prepare.h"
#include "client/run/temporary_folder.h"
#include "client/train/run_trace.h"
#include "client/train/trainer.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/terminal.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/files/record.h"
#include "common/predict/simulator.h"
#include "common/record/trace_file.h"

namespace cleave {
namespace {

struct SimulateOptions {
  RunOptions run;
  LinkOptions link;
  std::vector<std::uint32_t> microBatches;
  std::uint32_t inFlight = 0;  // 0: the default of each schedule
  std::uint32_t steps = 4;
  std::uint32_t staleness = 0;              // of the run whose steps overlap; 0: none is predicted
  std::string profile;                      // file path; empty: no file
  std::vector<std::string> serverProfiles;  // file paths
  bool timeline = false;
  std::string trace;  // a file path; empty: no file
};

using Json = nlohmann::ordered_json;

// The predicted seconds per step of a run with staleness.
struct SteadySteps {
  std::string schedule;
  std::uint32_t staleness = 0;
  double seconds = 0;
};

// A step with one number of micro-batches.
struct Case {
  StepCosts costs;
  std::uint32_t batch = 0;     // samples per batch
  std::uint32_t inFlight = 0;  // see predictedInFlight()
  StepPrediction prediction = {};
  std::vector<SteadySteps> steady = {};
};

// ---- Measuring ----

// Trains a few steps through the server, exactly like `train`; of a cohort, as one member alone,
// with an equal share of the batch.
Case measure(const SimulateOptions& options, const LinkCosts& link, std::uint32_t microBatches) {
  const TemporaryFolder folder;
  RunOptions runOptions = options.run;
  runOptions.runDir = folder.path() + "/run";
  std::vector<std::string>& overrides = runOptions.common.overrides;
  if (microBatches > 0) overrides.push_back("train.micro_batches=" + std::to_string(microBatches));
  Config config = loadConfig(runOptions.common);
  std::optional<PreparedRun> cohort;  // as configured
  if (readClientSettings(config).cohort.exists()) {
    cohort.emplace(resolveRun(runOptions, Purpose::measurement));
    const Division share = divisionOfMember(cohort->plan, cohort->settings.batch);
    if (share.count < maxReplicasOf(cohort->settings)) {
      throw UsageError("bad-micro-batches",
                       "one member has too few micro-batches to measure replicas with it alone",
                       "use --profile, or raise train.micro_batches")
          .about("train.micro_batches");
    }
    for (const char* key :
         {"id=''", "members=[]", "member=''", "min_members=0", "begin_members=0"}) {
      overrides.push_back(std::string("cohort.") + key);
    }
    overrides.push_back("codec=" + codecMapText(cohort->settings.codecs));
    overrides.push_back("train.batch=" + std::to_string(share.samples));
    overrides.push_back("train.micro_batches=" + std::to_string(share.count));
  }
  overrides.push_back("train.max_steps=" + std::to_string(options.steps + 1));
  overrides.emplace_back("train.in_flight=0");
  overrides.emplace_back("train.staleness=0");
  for (const char* unmeasured : {"eval.every=0", "keep={}", "train.stop={}"}) {
    overrides.emplace_back(unmeasured);
  }
  PreparedRun prepared = prepareRun(runOptions, Purpose::measurement);
  logWarnings(prepared, *processLog());
  link.checkServers(prepared.settings.bodies());
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
  const PreparedRun& configured = cohort ? *cohort : prepared;
  const std::uint32_t batch = configured.settings.batch;
  StepCosts costs = *result.costs;
  const std::vector<RunPlan> bodies = prepared.plansOfBodies();
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    ReplicaCosts& replicas = costs.bodies[b].replicas;
    replicas = replicaCosts(bodies[b], replicas.count, configured.plan.divide(batch).count);
  }
  setMembers(costs, configured.plan, batch);
  return {std::move(costs), batch};
}

// The costs with each number of micro-batches (0: the configured one), from profiles.
std::vector<Case> casesFromProfiles(const SimulateOptions& options, const LinkCosts& link,
                                    const std::vector<std::uint32_t>& numbers) {
  const Profile client = readProfile(options.profile);
  const PreparedRun run = profiledRun(options.run, client);
  const std::vector<RunPlan> bodies = run.plansOfBodies();
  link.checkServers(bodies.size());
  const std::vector<Profile> servers =
      options.serverProfiles.empty()
          ? std::vector<Profile>(bodies.size(), client)
          : readServerProfiles(options.serverProfiles, bodies.size(), /*allowsMore=*/false);
  checkProfiles(run.plan, client, servers);
  std::vector<Case> cases;
  for (const std::uint32_t number : numbers) {
    RunPlan plan = run.plan;
    if (number > 0) plan.spec.microBatches = number;
    for (const RunPlan& body : bodies) {
      plan.spec.replicas = body.spec.replicas;
      checkReplicas(plan.spec, *plan.schedule);
    }
    cases.push_back(
        {profiledCosts(plan, bodies, run.settings.batch, client, servers), run.settings.batch});
  }
  return cases;
}

// ---- Simulating ----

std::vector<SteadySteps> steadySteps(const Case& one, std::uint32_t staleness) {
  const StepCosts& costs = one.costs;
  std::vector<SteadySteps> all;
  for (const Schedule* schedule : predictableSchedules(costs)) {
    if (!supportsStaleness(*schedule, costs.maxReplicas())) continue;
    const std::uint32_t inFlight = predictedInFlight(costs, *schedule, one.inFlight, staleness);
    all.push_back({std::string(schedule->name), staleness,
                   steadyStepSeconds(costs, policyOf(*schedule, inFlight), staleness)});
  }
  return all;
}

// A row of a timeline: the client's or a server's.
struct TimelineRow {
  Span::Lane lane = Span::Lane::client;
  std::size_t server = 0;
  std::size_t member = 0;
  std::string name;

  bool has(const Span& span) const {
    return span.lane == lane && span.server == server && span.member == member;
  }
};

// Top down: the clients, then, server by server, its links to them, and the server.
std::vector<TimelineRow> timelineRows(const StepCosts& costs) {
  using Lane = Span::Lane;
  // A number is part of a name only if there are several.
  const auto numbered = [](std::size_t number, std::size_t of) {
    return of == 1 ? "" : fmt::format(" {}", number + 1);
  };
  std::vector<TimelineRow> rows;
  for (std::size_t m = 0; m < costs.members; ++m) {
    const std::string number = numbered(m, costs.members);
    rows.push_back({Lane::client, 0, m, "client" + number});
    rows.push_back({Lane::clientCodec, 0, m, "client codec" + number});
  }
  for (std::size_t s = 0; s < costs.servers(); ++s) {
    const std::string number = numbered(s, costs.servers());
    if (s > 0 && !costs.edges.empty()) {
      rows.push_back({Lane::edgeForward, s, 0, fmt::format("edge {} to {}", s, s + 1)});
      rows.push_back({Lane::edgeBackward, s, 0, fmt::format("edge {} to {}", s + 1, s)});
    }
    for (std::size_t m = 0; m < costs.members; ++m) {
      const std::string ofClient =
          costs.members == 1 ? number : number + numbered(m, costs.members);
      rows.push_back({Lane::uplink, s, m, "uplink" + ofClient});
      rows.push_back({Lane::downlink, s, m, "downlink" + ofClient});
    }
    rows.push_back({Lane::serverCodec, s, 0, "server codec" + number});
    rows.push_back({Lane::server, s, 0, "server" + number});
  }
  return rows;
}

// The letters of a timeline.
constexpr const char* kLegend =
    "  F HeadForward or BodyForward, T TailStep, H HeadBackward, B BodyBackward,\n"
    "  W BodyWeights;\n"
    "  e encode, d decode; a activation, g gradient; . idle\n";

std::size_t timelineWidth() {
  constexpr std::size_t kUsual = 81, kMin = 30, kNames = 18;
  if (!isLiveTerminal(STDOUT_FILENO)) return kUsual;
  const std::size_t columns = terminalColumns(STDOUT_FILENO);
  return columns < kNames + kMin ? kMin : std::min(kUsual, columns - kNames);
}

// One line per row that is not empty, one letter per time slot; see kLegend.
std::string timelineText(const SimulatedStep& step, const std::vector<TimelineRow>& rows) {
  const std::size_t width = timelineWidth();
  std::string text;
  for (const TimelineRow& row : rows) {
    std::string line(width, '.');
    for (const Span& span : step.timeline) {
      if (!row.has(span)) continue;
      const auto column = [&](double time) {
        return std::min(width - 1,
                        static_cast<std::size_t>(time / step.seconds * static_cast<double>(width)));
      };
      char letter = span.what[0];
      if (span.what.starts_with("Head")) letter = span.what[4] == 'F' ? 'F' : 'H';
      if (span.what.starts_with("Body")) letter = span.what[4];
      for (std::size_t c = column(span.begin); c <= column(span.end); ++c) {
        if (line[c] == '.' || c > column(span.begin)) line[c] = letter;
      }
    }
    if (line.find_first_not_of('.') == std::string::npos) continue;
    text += fmt::format("  {:<15}{}\n", row.name, line);
  }
  return text + fmt::format("  {:<15}0{:>{}}\n", "", fmt::format("{:.1f} ms", step.seconds * 1e3),
                            width - 1);
}

SimulatedStep timelineOf(const Case& one, const Schedule& schedule) {
  const StepCosts& costs = one.costs;
  const std::uint32_t inFlight = predictedInFlight(costs, schedule, one.inFlight);
  return simulateStep(costs, policyOf(schedule, inFlight), /*withTimeline=*/true);
}

// The trace has one process for each combination of micro-batches and schedule, with one track per
// row.
std::string traceText(const std::vector<Case>& cases) {
  TraceFile file;
  for (const Case& one : cases) {
    for (const Schedule* schedule : predictableSchedules(one.costs)) {
      const int process = file.addProcess(
          fmt::format("{}, {} micro-batches", schedule->name, one.costs.microBatches));
      const SimulatedStep step = timelineOf(one, *schedule);
      const auto nanoseconds = [](double time) { return std::llround(time * 1e9); };
      for (const TimelineRow& row : timelineRows(one.costs)) {
        const TraceTrack track = file.addTrack(process, row.name);
        for (const Span& span : step.timeline) {
          if (!row.has(span)) continue;
          file.slice(track, "simulated", span.what, nanoseconds(span.begin), nanoseconds(span.end));
        }
      }
    }
  }
  return file.text({{"software", softwareVersion()}});
}

// The milliseconds of an action; with several servers, of each one: "1.00 + 2.00".
std::string bodyMs(const StepCosts& costs, ActionKind kind) {
  std::string text;
  for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
    text += fmt::format("{}{:.2f}", b == 0 ? "" : " + ", 1e3 * costs.of(kind, b));
  }
  return text;
}

void printCosts(const Case& one) {
  const StepCosts& costs = one.costs;
  const auto ms = [&](ActionKind kind) { return 1e3 * costs.of(kind); };
  double codec = 0;
  for (const auto& [flow, tensor] : costs.flows) {
    codec += 1e3 * (tensor.encodeSeconds + tensor.decodeSeconds);
  }
  const ClientBytes bytes = clientBytesOf(costs);
  const std::string weights =
      !costs.hasWeights()
          ? ""
          : fmt::format(" (of which BodyWeights {})", bodyMs(costs, ActionKind::bodyWeights));
  const std::string text = fmt::format(
      "\n{} micro-batches{}; each takes HeadForward {:.2f}, TailStep {:.2f}, HeadBackward "
      "{:.2f},\nBodyForward {}, BodyBackward {}{},\ncodecs {:.2f} ms, and transfers {} up, "
      "{} down\n",
      costs.microBatches, costs.members == 1 ? "" : fmt::format(" of {} members", costs.members),
      ms(ActionKind::headForward), ms(ActionKind::tailStep), ms(ActionKind::headBackward),
      bodyMs(costs, ActionKind::bodyForward), bodyMs(costs, ActionKind::bodyBackward), weights,
      codec, bytesText(bytes.up), bytesText(bytes.down));
  std::cout << wrappedFor(STDOUT_FILENO, text, 2);
  for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
    const ReplicaCosts& replicas = costs.bodies[b].replicas;
    if (replicas.count == 1) continue;
    std::cout << fmt::format(
        "  {}{} replicas, whose sum of {} takes {:.2f} ms (--edge-rate, --edge-latency)\n",
        costs.bodies.size() == 1 ? "" : fmt::format("body {}: ", b + 1), replicas.count,
        bytesText(replicas.bytes), 1e3 * replicas.seconds);
  }
}

void printCase(const Case& one, bool withTimeline) {
  printCosts(one);
  std::cout << fmt::format("  {:<18}{:>12}{:>14}{:>18}{:>12}\n", "schedule", "step, ms",
                           "step / bound", "step / best order", "samples/s");
  double lowest = one.prediction.bound.seconds;
  const auto row = [&](const std::string& name, double seconds, double bound) {
    std::cout << fmt::format("  {:<18}{:>12.1f}{:>14.3f}{:>18.3f}{:>12.0f}\n", name, 1e3 * seconds,
                             seconds / bound, seconds / one.prediction.bestOrder,
                             one.batch / seconds);
    lowest = std::min(lowest, bound);
  };
  for (const StepPrediction::Of& each : one.prediction.schedules) {
    row(each.schedule, each.seconds, each.bound);
  }
  row("best order found", one.prediction.bestOrder, lowest);
  const StepBound& bound = one.prediction.bound;
  std::cout << fmt::format("  bound {:.1f} ms: {}\n", 1e3 * bound.seconds,
                           bottleneckText(bound.bottleneck, bottleneckServer(one.costs, bound)));
  if (one.costs.members > 1) {
    std::cout << "  the members' shares of a batch vary at random, except in the bound, the best "
                 "order and the timeline\n";
  }
  if (lowest < one.prediction.bound.seconds) {
    std::cout << fmt::format("  bound {:.1f} ms if the server's backward is split, as in zb\n",
                             1e3 * lowest);
  }
  if (!one.costs.hasWeights()) {
    std::cout << "  zb is not predicted, because the two parts of the server's backward were not "
                 "measured;\n  to measure them, add --set train.schedule=zb, or use --profile\n";
  }
  for (const SteadySteps& each : one.steady) {
    std::cout << fmt::format("  {:<18}{:>12.1f}{:>14}{:>18}{:>12.0f}\n",
                             fmt::format("{}, D = {}", each.schedule, each.staleness),
                             1e3 * each.seconds, "", "", one.batch / each.seconds);
  }
  if (!withTimeline) return;
  for (const Schedule* schedule : predictableSchedules(one.costs)) {
    std::cout << "\n  " << schedule->name << "\n"
              << timelineText(timelineOf(one, *schedule), timelineRows(one.costs));
  }
  std::cout << "\n" << wrappedFor(STDOUT_FILENO, kLegend, 2);
}

struct Best {
  std::uint32_t microBatches = 0;
  StepPrediction::Of of;
};

Best bestOf(const std::vector<Case>& cases) {
  std::optional<Best> best;
  for (const Case& one : cases) {
    for (const StepPrediction::Of& each : one.prediction.schedules) {
      if (!best || each.seconds < best->of.seconds) best = {one.costs.microBatches, each};
    }
  }
  return *best;
}

// The cases with each requested number of micro-batches, without predictions.
std::vector<Case> casesOf(const SimulateOptions& options, const LinkCosts& link) {
  const std::vector<std::uint32_t> numbers =
      options.microBatches.empty() ? std::vector<std::uint32_t>{0} : options.microBatches;
  if (!options.profile.empty()) return casesFromProfiles(options, link, numbers);
  std::vector<Case> cases;
  for (const std::uint32_t number : numbers) cases.push_back(measure(options, link, number));
  return cases;
}

void checkMicroBatches(const SimulateOptions& options, std::uint32_t batch) {
  for (const std::uint32_t number : options.microBatches) {
    if (number <= batch) continue;
    throw UsageError("bad-micro-batches",
                     fmt::format("--micro-batches {}: a batch has {} samples", number, batch),
                     fmt::format("give a number in 1…{}", batch));
  }
}

int simulateCommand(const SimulateOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  const LinkCosts link = linkCosts(options.link);
  if (!options.trace.empty()) checkTracePath(options.trace);
  std::vector<Case> cases = casesOf(options, link);
  for (Case& one : cases) {
    checkMicroBatches(options, one.batch);
    if (one.costs.members > 1 && options.staleness > 0) throw noOverlapOfCohorts();
    link.applyTo(one.costs);
    one.inFlight = options.inFlight;
    one.prediction = predictStep(one.costs, one.inFlight);
    if (options.staleness > 0) one.steady = steadySteps(one, options.staleness);
  }
  const Best best = bestOf(cases);
  if (!options.trace.empty()) writeFileDurably(options.trace, traceText(cases));
  if (options.run.json) {
    Json json = link.json();
    json["cases"] = Json::array();
    for (const Case& one : cases) {
      json["cases"].push_back(toJson(one.costs, one.batch, &one.prediction));
      for (const SteadySteps& each : one.steady) {
        json["cases"].back()["steady"].push_back({{"schedule", each.schedule},
                                                  {"staleness", each.staleness},
                                                  {"seconds", each.seconds}});
      }
    }
    json["best"] = {{"micro_batches", best.microBatches},
                    {"schedule", best.of.schedule},
                    {"seconds", best.of.seconds}};
    std::cout << json.dump(2) << std::endl;
    return 0;
  }
  const bool isShared = cases.front().costs.sharesLink;
  const bool areSeveral = cases.front().costs.servers() > 1;
  const bool hasMembers = cases.front().costs.members > 1;
  std::cout << "link: " << link.text()
            << (isShared     ? ", shared by all servers"
                : areSeveral ? ", one per server"
                             : "")
            << (hasMembers ? ", for each member" : "")
            << (cases.front().costs.edges.empty() ? "" : ", and direct links between the servers")
            << "\n";
  for (const Case& one : cases) printCase(one, options.timeline);
  std::cout << fmt::format("\nbest: {} with {} micro-batches, {:.1f} ms per step\n",
                           best.of.schedule, best.microBatches, 1e3 * best.of.seconds);
  return 0;
}

}  // namespace

void addSimulateCommand(CLI::App& app, std::function<int()>& command) {
  static SimulateOptions options;
  CLI::App* simulate = app.add_subcommand("simulate",
                                          "Predicts the step time of each schedule on a given "
                                          "link, from times measured on client and server");
  addRunOptions(*simulate, options.run);
  simulate->remove_option(simulate->get_option("--run-dir"));
  addLinkOptions(*simulate, options.link);
  simulate
      ->add_option(
          "--micro-batches", options.microBatches,
          "Number of micro-batches to predict for; repeatable; default: the configured number")
      ->type_name("N")
      ->allow_extra_args(false)
      ->check(CLI::Range(1u, 65536u));
  simulate
      ->add_option("--in-flight", options.inFlight,
                   "Micro-batches in flight, within what each schedule supports; default: the "
                   "default of each schedule")
      ->type_name("W")
      ->check(CLI::Range(1u, 65536u));
  simulate->add_option("--steps", options.steps, "Steps to measure, after one warm-up step")
      ->default_str("4")
      ->check(CLI::Range(1u, 1000u));
  CLI::Option* profile =
      simulate
          ->add_option("--profile", options.profile,
                       "The client's times, from 'cleave-client profile', instead of measuring")
          ->type_name("FILE");
  simulate
      ->add_option("--server-profile", options.serverProfiles,
                   "The server's times, from 'cleave-server profile'; default: the client's. With "
                   "several servers, one for all, or repeated once per server")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->needs(profile);
  simulate
      ->add_option("--staleness", options.staleness,
                   "Also predicts the time per step of a run with this train.staleness")
      ->type_name("D")
      ->check(CLI::Range(0u, kMaxStaleness));
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
      "Without --server and --profile, client and server share this machine, so both are slower "
      "than "
      "on two machines.");
  simulate->callback([&] { command = [&] { return simulateCommand(options); }; });
}

}  // namespace cleave
