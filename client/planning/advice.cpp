#include "client/planning/advice.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "client/codecs/codec_choice.h"
#include "common/codec/snr.h"
#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/link/tensor_link_options.h"
#include "common/predict/simulator.h"

namespace cleave {
namespace {

// Share of the step time. A smaller saving could be a simulation error.
constexpr double kMinSaving = 0.05;
// Share of the median step time. With a greater spread, any saving could be noise.
constexpr double kMaxSpread = 0.5;
constexpr std::size_t kMinSteps = 10;
constexpr std::uint32_t kTrialSamples = 4;  // for timing a codec; the result is scaled
constexpr const char* kCostsAccuracy = "costs accuracy";
constexpr double kSnrTolerance = 0.04;  // dB

struct Change {
  std::vector<std::string> settings;
  double seconds = 0;  // predicted seconds per step
  std::string caveat;
};

double simulated(const StepCosts& costs, const Schedule& schedule, std::uint32_t inFlight) {
  return simulateStep(costs, policyOf(schedule, inFlight)).seconds;
}

// ---- Codecs ----

struct CodecTrial {
  double encodeSeconds = 0, decodeSeconds = 0;  // per micro-batch
  double bytes = 0;
  double snr = 0;  // dB; infinite if there is no error
};
using CodecTrials = FlowMap<CodecTrial>;

CodecTrial tryOn(const Codec& codec, Flow flow, const TensorSpec& tensor, CutContext& sender,
                 CutContext& receiver) {
  std::vector<float> values(tensor.elements());
  fillNormal(randomKey(1, "advice", {flowNumber(flow)}), values);
  // Activations are mostly outputs of a ReLU.
  for (float& value : values) value = isActivation(flow) ? std::max(value, 0.0F) : value;
  std::vector<float> decoded(values.size());
  std::vector<std::byte> payload(codec.maxEncodedBytes(tensor));
  const CodecContext context{1, {Phase::train, 1, 0, flow}};
  const TensorView view{reinterpret_cast<const std::byte*>(values.data()), tensor};
  CutContext warmUp = sender;
  codec.encode(context, nullptr, warmUp, view, payload);  // the first call touches the memory
  const SteadyTime start = now();
  const std::size_t bytes = codec.encode(context, nullptr, sender, view, payload).bytes;
  const SteadyTime encoded = now();
  codec.decode(context, nullptr, receiver, std::span(payload).first(bytes),
               {reinterpret_cast<std::byte*>(decoded.data()), tensor});
  return {secondsBetween(start, encoded), secondsSince(encoded), static_cast<double>(bytes),
          snrDb(view, reinterpret_cast<const std::byte*>(decoded.data())).value_or(HUGE_VAL)};
}

// Runs the codecs in the order in which a micro-batch crosses the link, because a gradient's codec
// may need state that the activation's codec kept. Assumes that the server encodes as fast as this
// machine.
CodecTrials tryCodecs(const TensorLinkOptions& options, std::uint32_t samples) {
  const std::uint32_t few = std::min(samples, kTrialSamples);
  const double scale = static_cast<double>(samples) / few;
  std::map<int, CutContext> senders, receivers;  // by cut
  CodecTrials trials;
  for (const auto& [flow, plan] : options.codecs) {
    const Codec& codec = *plan.own;
    CodecTrial& trial = trials[flow];
    trial = tryOn(codec, flow, options.spec(flow, few), senders[flow.cut], receivers[flow.cut]);
    trial.bytes = static_cast<double>(codec.maxEncodedBytes(options.spec(flow, samples)));
    trial.encodeSeconds *= codec.isIdentity() ? 0 : scale;
    trial.decodeSeconds *= codec.isIdentity() ? 0 : scale;
  }
  return trials;
}

// The link of a body, and a trial of its codecs.
struct BodyCodecs {
  TensorLinkOptions options;
  CodecTrials trials;
};

// Adds a change of codec for each one that `auto` chooses from, from the least to the most lossy.
// Each change applies to all flows.
void addCodecs(const StepCosts& costs, const RunPlan& plan, std::span<const RunPlan> bodies,
               std::uint32_t batch, std::vector<Change>& changes) {
  const std::uint32_t samples = plan.divide(batch).largest();
  std::vector<BodyCodecs> current;
  for (const RunPlan& body : bodies) {
    const TensorLinkOptions options = linkOptions(body, Role::client);
    for (const Flow flow : body.flows()) {
      // Costs are known per cut, not per tensor.
      if (flow.tensor > 0 || options.spec(flow, samples).dtype != DType::f32) return;
    }
    current.push_back({options, tryCodecs(options, samples)});
  }
  const std::vector<ParsedCodec> choices = autoCodec(parseCodecSpec("auto"))->choices;
  for (const ParsedCodec& choice : choices) {
    StepCosts changed = costs;
    std::string caveat;
    for (const BodyCodecs& body : current) {
      TensorLinkOptions options = body.options;
      for (auto& [flow, codec] : options.codecs) codec.own = choice.codec;
      for (const auto& [flow, tried] : tryCodecs(options, samples)) {
        if (body.options.codec(flow).spec() == choice->spec()) continue;  // costs were measured
        changed.flows[flow] = {tried.bytes, tried.encodeSeconds, tried.decodeSeconds};
        if (tried.snr < body.trials.at(flow).snr - kSnrTolerance) caveat = kCostsAccuracy;
      }
    }
    changes.push_back(
        {{"codec=" + choice.text}, simulated(changed, *plan.schedule, plan.inFlight), caveat});
  }
}

// ---- Order and micro-batches ----

void addSchedule(const StepCosts& costs, const RunPlan& plan, const ClientSettings& settings,
                 std::vector<Change>& changes) {
  const Schedule& priority = findSchedule("priority");
  Change change;
  if (plan.schedule != &priority) change.settings.emplace_back("train.schedule=priority");
  if (settings.inFlight != 0) change.settings.emplace_back("train.in_flight=0");
  if (change.settings.empty()) return;
  const std::uint32_t inFlight =
      resolveInFlight(priority, 0, plan.spec.microBatches, plan.spec.bodies);
  change.seconds = simulated(costs, priority, inFlight);
  changes.push_back(std::move(change));
}

// Whether the smallest micro-batch has enough samples for the model's batch norms.
bool normsHaveEnough(const MeasuredSteps& steps, const RunPlan& plan, std::uint32_t batch,
                     std::uint32_t microBatches) {
  for (const std::uint32_t samples : {batch, steps.lastBatch}) {
    if (samples > 0 &&
        !fitsBatchNorm(plan.blocks, Division::of(samples, microBatches).smallest())) {
      return false;
    }
  }
  return true;
}

void addMicroBatches(const MeasuredSteps& steps, const RunPlan& plan,
                     const ClientSettings& settings, std::vector<Change>& changes) {
  const std::uint32_t twice = 2 * plan.spec.microBatches;
  if (steps.costs.microBatches != plan.spec.microBatches) return;  // no full batch was measured
  if (twice > settings.batch || !normsHaveEnough(steps, plan, settings.batch, twice)) return;
  Change change;
  change.settings.push_back(fmt::format("train.micro_batches={}", twice));
  if (settings.inFlight != 0) change.settings.emplace_back("train.in_flight=0");
  change.seconds =
      simulated(steps.costs.inMicroBatches(2 * steps.costs.microBatches), *plan.schedule,
                resolveInFlight(*plan.schedule, 0, twice, plan.spec.bodies));
  if (hasBatchNorm(plan.blocks))
    change.caveat = "gives batch norm fewer samples, which may cost accuracy";
  changes.push_back(std::move(change));
}

// ---- Faster hardware or a faster link ----

struct Resource {
  const char* what = nullptr;
  double seconds = 0;  // predicted seconds per step
};

// With several servers, all of them or all of their links.
Resource resource(Bottleneck bottleneck, StepCosts costs, const RunPlan& plan) {
  const char* what = nullptr;
  const bool areSeveral = costs.servers() > 1;
  switch (bottleneck) {
    case Bottleneck::clientCompute:
      what = "a client twice as fast";
      for (const ActionKind kind :
           {ActionKind::headForward, ActionKind::tailStep, ActionKind::headBackward}) {
        costs.of(kind) /= 2;
      }
      costs.updateSeconds /= 2;
      break;
    case Bottleneck::serverCompute:
      what = areSeveral ? "servers twice as fast" : "a server twice as fast";
      for (BodyCosts& body : costs.bodies) {
        body.forward /= 2;
        body.backward /= 2;
        body.weights /= 2;
      }
      break;
    case Bottleneck::uplink:
      what = "an uplink twice as fast";
      for (BodyCosts& body : costs.bodies) body.rateUp *= 2;
      break;
    case Bottleneck::downlink:
      what = "a downlink twice as fast";
      for (BodyCosts& body : costs.bodies) body.rateDown *= 2;
      break;
    case Bottleneck::latency:
      what = "half the latency";
      for (BodyCosts& body : costs.bodies) body.latency /= 2;
      break;
    case Bottleneck::codec:
      what = "a codec twice as fast";
      for (auto& [flow, tensor] : costs.flows) {
        tensor.encodeSeconds /= 2;
        tensor.decodeSeconds /= 2;
      }
      break;
  }
  return {what, simulated(costs, *plan.schedule, plan.inFlight)};
}

std::string optionsText(const std::vector<std::string>& settings) {
  std::string text;
  for (const std::string& setting : settings)
    text += (text.empty() ? "--set " : " --set ") + setting;
  return text;
}

}  // namespace

std::optional<double> stepSpread(std::vector<float> seconds) {
  if (seconds.size() < kMinSteps) return std::nullopt;
  const auto quantile = [&](double share) {
    const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(seconds.size() - 1));
    std::nth_element(seconds.begin(), seconds.begin() + at, seconds.end());
    return double{seconds[static_cast<std::size_t>(at)]};
  };
  const double median = quantile(0.5);
  if (median <= 0) return std::nullopt;
  return (quantile(0.9) - quantile(0.1)) / 2 / median;
}

Advice adviseOn(const MeasuredSteps& steps, const RunPlan& plan, std::span<const RunPlan> bodies,
                const ClientSettings& settings) {
  if (!steps.spread) {
    Advice none;
    none.sentence = fmt::format(
        "advice requires {} steps with a full batch and a measured rate of the link; this run has "
        "{}",
        kMinSteps, steps.full);
    return none;
  }
  const double current = simulated(steps.costs, *plan.schedule, plan.inFlight);
  // Savings are relative to the measured step time, because no setting can save time that the
  // simulation does not model.
  const double step = std::max(current, steps.seconds);
  const auto saving = [&](const auto& change) { return (current - change.seconds) / step; };
  std::vector<Change> changes;
  addSchedule(steps.costs, plan, settings, changes);
  addMicroBatches(steps, plan, settings, changes);
  addCodecs(steps.costs, plan, bodies, settings.batch, changes);
  // Changes without a caveat come first: if two changes differ by less than the spread, the first
  // one is chosen.
  std::stable_partition(changes.begin(), changes.end(),
                        [](const Change& change) { return change.caveat.empty(); });
  double max = 0;
  for (const Change& change : changes) max = std::max(max, saving(change));

  const double threshold = std::max(kMinSaving, *steps.spread);
  Advice advice;
  if (threshold > kMaxSpread) {
    advice.sentence =
        fmt::format("no advice, because the step times varied by {:.0f} %", 100 * threshold);
    return advice;
  }
  for (const Change& change : changes) {
    if (saving(change) <= threshold || saving(change) < max - threshold) continue;
    advice.settings = change.settings;
    advice.saving = saving(change);
    advice.caveat = change.caveat;
    advice.sentence = fmt::format("{} would save about {:.0f} % of a step",
                                  optionsText(change.settings), 100 * advice.saving);
    if (!change.caveat.empty()) advice.sentence += ", but " + change.caveat;
    return advice;
  }
  const std::string share = fmt::format("{:.0f} %", 100 * threshold);
  advice.sentence = "no setting would save more than " +
                    (*steps.spread > kMinSaving ? "the " + share + " by which the step times varied"
                                                : share + " of a step");
  const Resource upgrade = resource(steps.bottleneck, steps.costs, plan);
  if (saving(upgrade) > threshold) {
    advice.saving = saving(upgrade);
    advice.sentence +=
        fmt::format("; {} would save about {:.0f} %", upgrade.what, 100 * advice.saving);
  }
  return advice;
}

nlohmann::json toJson(const Advice& advice) {
  return {{"settings", advice.settings},
          {"saving", advice.saving},
          {"caveat", advice.caveat},
          {"sentence", advice.sentence}};
}

}  // namespace cleave
