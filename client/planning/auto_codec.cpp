#include "client/planning/auto_codec.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "client/codecs/codec_choice.h"
#include "client/codecs/codec_comparison.h"
#include "client/planning/first_tensors.h"
#include "client/planning/trial_run.h"
#include "client/run/earlier_run.h"
#include "client/train/trainer.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/yaml.h"
#include "common/device/torch_errors.h"
#include "common/link/tensor_link_options.h"
#include "common/run/action_tables.h"
#include "common/run/profiler.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// In a shorter run, trials would not pay off.
constexpr std::uint64_t kMinRunSteps = 20;
// Steps per trial. The warm-up steps open TCP's window and fill caches; the first trial of a
// process needs more of them.
constexpr int kWarmUpSteps = 1;
constexpr int kFirstWarmUpSteps = 2;
constexpr int kMinMeasuredSteps = 3;
constexpr int kMaxMeasuredSteps = 12;
constexpr double kEnoughSeconds = 0.5;  // a trial ends after measured steps of this total duration
// Time limit of all trials together: kBudgetShare of the run, but at least kMinBudget and at most
// kMaxBudget seconds. The first trial always runs, with at least one measured step.
constexpr double kMinBudget = 3;
constexpr double kMaxBudget = 60;
constexpr double kBudgetShare = 0.03;
constexpr unsigned kMaxTrials = 5;  // for the number of bits
// How long a trial retries to connect if the server has not yet freed the previous trial's session.
// Servers ask clients to retry after 5 s.
constexpr double kTrialRetrySeconds = 6;

ParsedCodecs codecsOf(const ClientSettings& settings, const CodecCandidates& candidates,
                      const CodecChoice& choice) {
  ParsedCodecs codecs = settings.codecs;
  for (const auto& [flow, some] : candidates) codecs[flowName(flow)] = some[choice.at(flow)].codec;
  return codecs;
}

// ---- A trial ----

struct TrialResult {
  StepTime time;
  StepCosts costs;          // means over the measured steps
  std::uint32_t steps = 0;  // number of measured steps
};

// The mean of the faster half of the steps, because other programs can only slow a step down. The
// uncertainty is twice the standard error of that mean; a single step has no known uncertainty.
StepTime typical(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  seconds.resize((seconds.size() + 1) / 2);
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double each : seconds) squares += (each - mean) * (each - mean);
  const double error = count > 1 ? std::sqrt(squares / (count - 1) / count) : 0;
  return {mean, 2 * error / mean};
}

// The plan of a trial session with these codecs.
RunPlan trialPlan(const PreparedRun& run, const ParsedCodecs& codecs) {
  RunSpec spec = trialSpec(run);
  for (const auto& [flow, codec] : codecs) spec.codecs[flow] = codec;
  return clientPlan(spec, run.settings, run.userModel.get());
}

class Trial {
 public:
  // `weights`: of the head and the tail, which should send tensors like those of the run. The body
  // has its initial values.
  Trial(const PreparedRun& run, const std::vector<NamedTensor>& weights, const Batch& batch,
        const ParsedCodecs& codecs, unsigned number)
      : run_(run),
        batch_(batch),
        plan_(trialPlan(run, codecs)),
        hello_(trialHello(run, plan_.spec, number)),
        session_(*run.device),
        meter_({plan_.place}) {
    useDeviceCodecs(plan_, *run.device);
    withTorchErrors([&] {
      stage_ = std::make_unique<ClientStage>(plan_.stage, *run.device);
      stage_->importWeights(weights);
    });
  }

  void connect(double retrySeconds) {
    session_.connect(
        {{run_.servers.front(), hello_}},
        {.retrySeconds = retrySeconds, .progressSeconds = run_.settings.progressSeconds});
    session_.start(plan_, {plan_}, 0,
                   clientActions(*stage_, run_.threads,
                                 [this](const std::vector<BodyDone>& bodies) {
                                   // This decision does not change the weights, but its update
                                   // takes as long as a real one.
                                   StepDecision decision;
                                   decision.step = bodies.front().step;
                                   decision.learningRates.assign(
                                       run_.settings.groupRates.size() + 1, 0);
                                   return decision;
                                 }),
                   nullptr, std::make_shared<RunFiles>());
  }

  // Runs steps until enough are measured or `budget` seconds have passed.
  TrialResult perform(int warmUp, double budget) {
    const SteadyTime start = now();
    for (int step = 0; step < warmUp; ++step) runStep();
    std::vector<double> seconds;
    double sum = 0;
    while (seconds.size() < kMaxMeasuredSteps &&
           (seconds.size() < kMinMeasuredSteps || sum < kEnoughSeconds)) {
      if (!seconds.empty() && secondsSince(start) > budget) break;
      seconds.push_back(runStep());
      sum += seconds.back();
    }
    session_.close("done");
    const std::optional<StepCosts> costs = meter_.mean();
    if (!costs) throw RunError("not-measured", "the steps of the trial could not be measured");
    return {typical(seconds), *costs, static_cast<std::uint32_t>(seconds.size())};
  }

 private:
  double runStep() {
    const SteadyTime start = now();
    stage_->beginBatch(viewOf(batch_));
    session_.sendSamples(++steps_, batch_.numbers);
    session_.runBatch({Phase::train, steps_, 0, plan_.divide(batch_.samples())});
    const double seconds = secondsSince(start);
    const Coordinator& engine = session_.engine();
    meter_.measure(engine.ended().at, engine.ended().seconds, engine.reports(), session_.totals(),
                   session_.linkSpeeds());
    return seconds;
  }

  const PreparedRun& run_;
  const Batch& batch_;
  RunPlan plan_;
  const wire::Hello hello_;
  std::unique_ptr<ClientStage> stage_;
  ClientSession session_;
  std::uint64_t steps_ = 0;
  StepMeter meter_;
};

// ---- Candidates ----

// The codecs that each flow may get. Their bytes are computed from the shapes. Their seconds are
// those of the first trial's codec on each side, scaled by the ratio of the codecs' times on
// this machine.
CodecCandidates candidatesOf(const PreparedRun& run,
                             const std::map<std::string, std::vector<ParsedCodec>>& choicesOf,
                             std::uint32_t samples, const StepCosts& costs) {
  CodecCandidates candidates;
  const TensorLinkOptions options = linkOptions(run.plan, Role::client);
  for (const Flow flow : costs.body().place.flows()) {
    const std::string name = flowName(flow);
    const FlowCosts& measured = costs.flows.at(flow);
    // Sums over all tensors that cross the cut in the same direction: they share the codec.
    const auto sumHere = [&](const auto& bytesOfTensor) {
      double bytes = 0;
      for (const Flow each : run.plan.flows()) {
        if (each.kind != flow.kind || each.cut != flow.cut) continue;
        bytes += static_cast<double>(bytesOfTensor(options.spec(each, samples)));
      }
      return bytes;
    };
    const double rawBytes = sumHere([](const TensorSpec& tensor) { return tensor.bytes(); });
    const CodecCandidate given{run.settings.codecs.at(name), rawBytes, measured.bytes,
                               measured.encodeSeconds, measured.decodeSeconds};
    const auto choices = choicesOf.find(name);
    if (choices == choicesOf.end()) {
      candidates[flow] = {given};
      continue;
    }
    const TensorSpec tensor = options.spec(flow, samples);
    const auto bytesWith = [&](const Codec& codec) {
      return sumHere([&](const TensorSpec& each) {
        return isFloat(each.dtype) ? codec.maxEncodedBytes(each) : 0;
      });
    };
    const double headers = std::max(0.0, given.bytes - bytesWith(*given.codec));
    const CodecProfile start = measureCodec(*given.codec, tensor);
    for (const ParsedCodec& codec : choices->second) {
      CodecCandidate candidate = given;
      candidate.codec = codec;
      candidate.bytes = bytesWith(*codec) + headers;
      if (codec->isIdentity()) {
        candidate.encodeSeconds = candidate.decodeSeconds = 0;
      } else if (run.plan.codecs.at(flow).ownOnDevice == nullptr) {
        // Only for codecs on the CPU: on a GPU, all of these codecs take about as long.
        const CodecProfile own = measureCodec(*codec, tensor);
        candidate.encodeSeconds *= own.encodeSeconds / start.encodeSeconds;
        candidate.decodeSeconds *= own.decodeSeconds / start.decodeSeconds;
      }
      candidates[flow].push_back(std::move(candidate));
    }
  }
  return candidates;
}

CodecChoice startOf(const CodecCandidates& candidates, const ClientSettings& settings) {
  CodecChoice start;
  for (const auto& [flow, some] : candidates) {
    const ParsedCodec& codec = settings.codecs.at(flowName(flow));
    std::size_t& rung = start[flow];
    while (some[rung].codec != codec) ++rung;
  }
  return start;
}

// ---- All trials ----

// Whether the run itself would fail with this error, because it does not depend on the codecs.
bool wouldEndRun(const Error& error) {
  const bool isOfOtherKey = !error.key().empty() && error.key() != "codec";
  return isOfOtherKey || error.kind() == ErrorKind::usage || error.kind() == ErrorKind::interrupt;
}

struct Resolved {
  ParsedCodecs codecs;
  nlohmann::json trials = nlohmann::json::array();
  std::string text;                               // "182 ms with none, 188 ms with block:bits=8"
  nlohmann::json snr = nlohmann::json::object();  // {"activation/0": {"block:bits=4": 14.1, …}, …}

  void note(const ParsedCodecs& tried, const TrialResult& result) {
    trials.push_back(
        {{"codec", tried}, {"seconds_per_step", result.time.seconds}, {"steps", result.steps}});
    text += fmt::format("{}{:.1f} ms with {}", text.empty() ? "" : ", ", 1e3 * result.time.seconds,
                        codecsText(tried));
  }
};

class AutoCodecs {
 public:
  AutoCodecs(const PreparedRun& run, spdlog::logger& log)
      : run_(run), log_(log), weights_(initialWeights(run)), batch_(firstBatch(run)) {}

  Resolved resolve() {
    resolved_.codecs = run_.settings.codecs;
    const SteadyTime start = now();
    const auto first = performFirst();
    if (!first) return resolved_;
    const std::uint64_t steps = totalSteps(run_.settings, run_.trainSamples());
    const double runSeconds = first->time.seconds * static_cast<double>(steps);
    const double budget = std::clamp(kBudgetShare * runSeconds, kMinBudget, kMaxBudget);
    const auto left = [&] { return budget - secondsSince(start); };

    const StepCosts& costs = first->costs;
    const std::uint32_t samples = division().largest();
    const CodecCandidates candidates = candidatesOf(run_, run_.settings.autoCodecs, samples, costs);
    CodecChooser chooser(costs, policyOf(*run_.plan.schedule, run_.plan.inFlight), candidates,
                         startOf(candidates, run_.settings), first->time, run_.settings.autoBudget);
    while (trials_ < kMaxTrials) {
      const auto next = chooser.nextTrial();
      if (!next || !isTimeFor(next->seconds, left())) break;
      const ParsedCodecs codecs = codecsOf(run_.settings, candidates, next->choice);
      if (const auto result = performNext(codecs, left())) {
        chooser.measured(next->choice, result->time);
        chooser.limitRates(result->costs.body().rateUp, result->costs.body().rateDown);
      } else {
        chooser.exclude(next->choice);
      }
    }
    const CodecChoice best = chooser.best();
    resolved_.codecs = codecsOf(run_.settings, candidates, best);
    double seconds = chooser.timeOf(best).seconds;
    const PredictFunction predict = [&](const ParsedCodecs& codecs, const FlowMap<double>& sizes) {
      std::map<std::string, std::vector<ParsedCodec>> ones;
      for (const auto& [flow, choices] : run_.settings.autoCodecs) ones[flow] = {codecs.at(flow)};
      CodecCandidates others = candidatesOf(run_, ones, samples, costs);
      for (const auto& [flow, size] : sizes) others[flow].front().bytes *= size;
      return chooser.relativeTime(others, best);
    };
    seconds = reduceErrors(chooser.timeOf(best), predict, left());
    if (chooser.isLinkBound(best)) seconds = tryEntropyCoding(seconds, predict, left());
    if (!chooser.isWithinBudget(best, seconds)) {
      log_.warn(
          "codec: auto cannot keep within its limits; it uses the nearest codecs, {}. Raise "
          "max_ratio or max_step, or lower min_bits",
          codecsText(resolved_.codecs));
    }
    return resolved_;
  }

 private:
  Division division() const { return run_.plan.divide(batch_.samples()); }

  // Returns the predicted duration of a step with `codecs`, divided by that of a step with the
  // chosen number of bits. `sizes`: factors for the bytes of some flows.
  using PredictFunction =
      std::function<double(const ParsedCodecs& codecs, const FlowMap<double>& sizes)>;

  static bool isTimeFor(double stepSeconds, double left) {
    return (kWarmUpSteps + kMinMeasuredSteps) * stepSeconds <= left;
  }

  // Replaces chosen codecs by others that send as many bytes and make smaller errors on the run's
  // first tensors, unless a trial shows that the step becomes longer, or, if no time is left for a
  // trial, the simulator predicts it. `before`: the duration of a step without them; `budget`: the
  // seconds left for trials. Returns the seconds of a step with the result.
  double reduceErrors(const StepTime& before, const PredictFunction& predict, double budget) {
    const SteadyTime start = now();
    const ParsedCodecs better = leastNoisyCodecs();
    if (better == resolved_.codecs) return before.seconds;
    const double left = budget - secondsSince(start);
    StepTime after;
    if (isTimeFor(before.seconds, left)) {
      const auto result = performNext(better, left);
      if (!result) return before.seconds;
      after = result->time;
    } else {
      after.seconds = before.seconds * predict(better, {});
    }
    const double tolerance = kStepTolerance + std::hypot(before.uncertainty, after.uncertainty);
    if (after.seconds > (1 + tolerance) * before.seconds) {
      log_.info("codec: with the codecs of higher SNR, a step takes longer; they are not used");
      return before.seconds;
    }
    resolved_.codecs = better;
    return after.seconds;
  }

  // Whether a codec was chosen for the flow that can be compared with others.
  bool isComparable(const std::string& flow) const {
    return run_.settings.autoCodecs.contains(flow) &&
           codecsLike(resolved_.codecs.at(flow).text).size() > 1;
  }

  // Computes the run's first tensors, unless they have been computed. There may be none.
  void computeTensors() {
    if (tensors_) return;
    tensors_.emplace();
    try {
      tensors_ = firstTensors(run_, trialPlan(run_, run_.settings.codecs), weights_, batch_);
    } catch (const Error& error) {
      log_.warn(
          "codec: auto does not compare codecs of the same size, because the client cannot "
          "compute the model: {}",
          error.what());
    }
  }

  // The tensors of a flow, which share its codec.
  std::vector<const SampleTensor*> tensorsOfFlow(const std::string& name) const {
    std::vector<const SampleTensor*> found;
    for (const auto& [flow, tensor] : *tensors_) {
      if (flowName({flow.kind, flow.cut}) == name) found.push_back(&tensor);
    }
    return found;
  }

  // The chosen codecs, or those that send as many bytes and make smaller errors.
  ParsedCodecs leastNoisyCodecs() {
    ParsedCodecs better = resolved_.codecs;
    const bool isAny = std::any_of(better.begin(), better.end(),
                                   [&](const auto& flow) { return isComparable(flow.first); });
    if (isAny) computeTensors();
    for (const auto& [name, choices] : run_.settings.autoCodecs) {
      if (!isComparable(name)) continue;
      const std::vector<CodecSnr> compared =
          compareCodecs(resolved_.codecs.at(name).text, tensorsOfFlow(name));
      if (compared.empty()) continue;
      for (const CodecSnr& each : compared) {
        if (std::isfinite(each.snrDb)) resolved_.snr[name][each.codec.text] = each.snrDb;
      }
      const CodecSnr& best = leastNoisy(compared);
      if (best.codec == compared.front().codec) continue;
      log_.info("codec: {} has an SNR of {:.1f} dB with {}, and {:.1f} dB with {}", name,
                compared.front().snrDb, compared.front().codec.text, best.snrDb, best.codec.text);
      better[name] = best.codec;
    }
    return better;
  }

  // Adds entropy coding, which loses nothing but takes time, to the chosen codecs if the step
  // becomes more than 3 % shorter. How many bytes it saves depends on the tensors: those of a trial
  // are like the run's if the body has its weights; otherwise, the simulator predicts the step.
  // `before`: the seconds of a step without it. Returns the seconds of a step with the result.
  double tryEntropyCoding(double before, const PredictFunction& predict, double budget) {
    ParsedCodecs coded = resolved_.codecs;
    for (auto& [flow, codec] : coded) {
      const bool isChosen = run_.settings.autoCodecs.contains(flow);
      if (isChosen && hasRawFormat(*codec)) codec = parseCodec(fmt::format("rans({})", codec.text));
    }
    if (coded == resolved_.codecs) return before;
    double after = before;
    if (weights_.empty()) {
      if (!isTimeFor(before, budget)) return before;
      if (const auto result = performNext(coded, budget)) after = result->time.seconds;
    } else {
      computeTensors();
      after = before * predict(coded, shrinkage(coded)) / predict(resolved_.codecs, {});
    }
    if (after >= (1 - kStepTolerance) * before) return before;
    resolved_.codecs = coded;
    return after;
  }

  // For each flow with tensors, their bytes with these codecs divided by the largest possible ones.
  FlowMap<double> shrinkage(const ParsedCodecs& codecs) const {
    FlowMap<double> sizes;
    for (const auto& [name, choices] : run_.settings.autoCodecs) {
      const std::vector<const SampleTensor*> tensors = tensorsOfFlow(name);
      const ParsedCodec& codec = codecs.at(name);
      double max = 0;
      for (const SampleTensor* tensor : tensors) {
        max += static_cast<double>(codec->maxEncodedBytes(tensor->spec));
      }
      const auto bytes = encodedBytes(*codec, tensors);
      const std::optional<Flow> flow = flowFromName(name);
      if (flow && max > 0 && bytes) sizes[*flow] = static_cast<double>(*bytes) / max;
    }
    return sizes;
  }

  // An error that prevents the first trial from connecting would also prevent the run from
  // connecting.
  std::optional<TrialResult> performFirst() {
    Trial trial(run_, weights_, batch_, run_.settings.codecs, ++trials_);
    trial.connect(run_.settings.retrySeconds);
    try {
      TrialResult result = trial.perform(kFirstWarmUpSteps, kMinBudget);
      resolved_.note(run_.settings.codecs, result);
      return result;
    } catch (const Error& error) {
      if (wouldEndRun(error)) throw;
      log_.warn("codec: auto uses {}, because its first trial failed: {}",
                codecsText(run_.settings.codecs), error.what());
    }
    return std::nullopt;
  }

  // Returns nothing if the trial fails: only its codecs differ from those of the first one. For
  // example, they may need more memory on the server.
  std::optional<TrialResult> performNext(const ParsedCodecs& codecs, double budget) {
    try {
      Trial trial(run_, weights_, batch_, codecs, ++trials_);
      trial.connect(std::min(kTrialRetrySeconds, run_.settings.retrySeconds));
      TrialResult result = trial.perform(kWarmUpSteps, budget);
      resolved_.note(codecs, result);
      return result;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupt) throw;
      log_.warn("codec: auto does not use {}, because its trial failed: {}", codecsText(codecs),
                error.what());
    }
    return std::nullopt;
  }

  const PreparedRun& run_;
  spdlog::logger& log_;
  const std::vector<NamedTensor> weights_;  // empty: those of the seed
  const Batch batch_;
  unsigned trials_ = 0;
  std::optional<SampleTensors> tensors_;  // see computeTensors()
  Resolved resolved_;
};

// Why no trial is made; empty: trials are made.
std::string reasonForNoTrials(const PreparedRun& run) {
  if (!run.localServers.empty() && !run.settings.autoBudget.isLimited()) {
    return "the server is on this machine, without a link in between";
  }
  if (run.bodies.size() > 1) {
    return fmt::format("it makes no trials with {}",
                       run.settings.bodies() == 1 ? "replicas" : "several servers");
  }
  const std::uint64_t steps = totalSteps(run.settings, run.trainSamples());
  if (steps >= kMinRunSteps) return "";
  return fmt::format("a run of {} steps is too short for trials", steps);
}

void useCodecs(PreparedRun& run, const ParsedCodecs& codecs) {
  Config config =
      Config::parse(run.settings.resolved, "config.yaml", {"codec=" + codecMapText(codecs)});
  run.settings.resolved = readClientSettings(config).resolved;
  run.settings.codecs = codecs;
  run.settings.autoCodecs.clear();
  RunSpec spec = run.plan.spec;
  for (auto& [flow, codec] : spec.codecs) codec = codecs.at(flow);
  useCodecLevels(run.settings, spec);
  planFor(run, spec);
  placeCodecs(run);
  rewriteConfig(run);
}

}  // namespace

std::string codecMapText(const nlohmann::json& codecs) {
  std::string text;
  for (const auto& [flow, spec] : codecs.items()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", flow, spec.dump());
  }
  return "{" + text + "}";
}

std::string codecsText(const ParsedCodecs& codecs) {
  const ParsedCodec& first = codecs.begin()->second;
  const bool isOne = std::all_of(codecs.begin(), codecs.end(),
                                 [&](const auto& flow) { return flow.second == first; });
  return isOne ? first.text : codecMapText(codecs);
}

std::optional<nlohmann::json> resolveAutoCodecs(PreparedRun& run, spdlog::logger& log) {
  if (run.settings.autoCodecs.empty()) return std::nullopt;
  const SteadyTime start = now();
  Resolved resolved;
  resolved.codecs = run.settings.codecs;
  if (const std::string reason = reasonForNoTrials(run); !reason.empty()) {
    log.info("codec: auto uses {}: {}", codecsText(resolved.codecs), reason);
  } else {
    log.info("codec: auto measures a few steps with the server");
    setComputeThreads(run.threads);
    try {
      resolved = AutoCodecs(run, log).resolve();
    } catch (...) {
      removeUnbegun(run);
      throw;
    }
  }
  useCodecs(run, resolved.codecs);
  const double seconds = secondsSince(start);
  log.info("codec: {}", codecMapText(resolved.codecs));
  if (!resolved.text.empty()) {
    log.info("codec: a step took {}; the trials took {:.1f} s", resolved.text, seconds);
  }
  nlohmann::json choice{{"seconds", seconds}, {"trials", resolved.trials}};
  if (!resolved.snr.empty()) choice["snr_db"] = resolved.snr;
  return choice;
}

}  // namespace cleave
