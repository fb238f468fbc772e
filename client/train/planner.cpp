#include "client/train/planner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "common/core/units.h"
#include "common/predict/simulator.h"
#include "common/run/profiler.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// Limits the duration of a search with many equally fast candidates. Those with the lowest bounds
// are simulated.
constexpr std::size_t kMaxSimulated = 2000;
constexpr std::size_t kMaxPlans = 5;

// The codecs that a flow may have, from the least to the most lossy one.
using CodecLists = std::map<std::string, std::vector<std::string>>;

// Positions in the codec lists, per direction.
struct Rungs {
  std::size_t up = 0, down = 0;

  // One direction at position N + 1 counts more than both at position N.
  double loss() const {
    return std::exp2(static_cast<double>(up)) + std::exp2(static_cast<double>(down)) - 2;
  }
};

struct Candidate {
  Cuts cuts;
  std::uint32_t microBatches = 0;
  Rungs rungs;
  double bound = 0;  // seconds
};

class Planner {
 public:
  Planner(const PreparedRun& run, const Profile& client, const Profile& server,
          const PlannerOptions& options)
      : run_(run),
        client_(client),
        server_(server),
        options_(options),
        lists_(codecLists()),
        microBatches_(microBatchNumbers()) {}

  Plans make() {
    Plans plans;
    plans.configured = predicted(run_.plan, 0);
    std::vector<Candidate> candidates = allCandidates();
    plans.considered = candidates.size();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
    plans.best = bestOf(simulated(candidates));
    if (plans.best.empty()) throw tooLittleMemory();
    return plans;
  }

 private:
  // The configured number, and those in profiledMicroBatches() that the epoch's last batch allows.
  std::vector<std::uint32_t> microBatchNumbers() const {
    std::vector<std::uint32_t> numbers = {run_.settings.microBatches};
    ClientSettings settings = run_.settings;
    for (const std::uint32_t number : profiledMicroBatches(run_.plan.blocks, settings.batch)) {
      settings.microBatches = number;
      if (number == numbers.front()) continue;
      try {
        checkBatchNorm(run_.plan.blocks, minMicroBatch(settings, *run_.data.train));
        numbers.push_back(number);
      } catch (const UsageError&) {  // too few samples
      }
    }
    return numbers;
  }

  CodecLists codecLists() const {
    CodecLists lists;
    for (const auto& [flow, spec] : run_.settings.codecs) {
      const auto choices = run_.settings.autoCodecs.find(flow);
      lists[flow] = !options_.codecs.empty()                    ? options_.codecs
                    : choices != run_.settings.autoCodecs.end() ? choices->second
                                                                : std::vector{spec};
    }
    return lists;
  }

  std::size_t maxRungs() const {
    std::size_t max = 1;
    for (const auto& [flow, list] : lists_) max = std::max(max, list.size());
    return max;
  }

  std::string codecAt(const std::string& flow, bool isUp, const Rungs& rungs) const {
    const std::vector<std::string>& list = lists_.at(flow);
    return list[std::min(isUp ? rungs.up : rungs.down, list.size() - 1)];
  }

  std::vector<Cuts> allCuts() const {
    if (options_.keepsCuts || run_.userModel || !run_.settings.inserts.empty())
      return {run_.plan.stage.cuts};
    std::vector<Cuts> all;
    const int blocks = static_cast<int>(run_.plan.blocks.size());
    for (int cut0 = 1; cut0 < blocks - 1; ++cut0) {
      for (int cut1 = cut0 + 1; cut1 < blocks; ++cut1) all.push_back({cut0, cut1});
    }
    return all;
  }

  // The run spec with these cuts, without codecs. Whether the head is frozen depends on the cuts.
  RunSpec specWith(const Cuts& cuts) const {
    ClientSettings settings = run_.settings;
    settings.cuts = {cuts.cut0, cuts.cut1};
    settings.codecs.clear();
    settings.inFlight = 0;
    settings.staleness = 0;
    settings.schedule = "priority";
    return makeRunSpec(settings, *run_.data.train, run_.userModel.get());
  }

  RunPlan planOf(const RunSpec& spec) const {
    return clientPlan(spec, run_.settings, run_.userModel.get());
  }

  StepCosts costsOf(const RunPlan& plan) const {
    StepCosts costs =
        profiledCosts(plan, run_.settings.batch, run_.settings.wait, client_, server_);
    BodyCosts& body = costs.body();
    body.rateUp = options_.link.rateUp;
    body.rateDown = options_.link.rateDown;
    body.latency = options_.link.latency;
    body.queueBytes = options_.link.queueBytes;
    return costs;
  }

  // ---- Bounds ----

  std::vector<Candidate> allCandidates() const {
    std::vector<Candidate> candidates;
    for (const Cuts& cuts : allCuts()) {
      RunPlan plan = planOf(specWith(cuts));
      for (const std::uint32_t number : microBatches_) {
        plan.spec.microBatches = number;
        addCandidates(plan, candidates);
      }
    }
    return candidates;
  }

  // Adds a candidate for each pair of codec positions.
  void addCandidates(RunPlan& plan, std::vector<Candidate>& candidates) const {
    StepCosts costs = costsOf(plan);
    const std::size_t rungs = maxRungs();
    for (std::size_t up = 0; up < rungs; ++up) {
      for (std::size_t down = 0; down < rungs; ++down) {
        useCodecs(plan, {up, down});
        setFlows(costs, plan, run_.settings.batch, client_, server_);
        candidates.push_back({plan.stage.cuts,
                              plan.spec.microBatches,
                              {up, down},
                              std::min(stepBound(costs).seconds, stepBound(costs, true).seconds)});
      }
    }
  }

  void useCodecs(RunPlan& plan, const Rungs& rungs) const {
    for (auto& [flow, codec] : plan.codecs) {
      const bool hasFloats = isFloat(flowSpec(plan.blocks, plan.stage.cuts, flow, 1).dtype);
      const std::string name = flowName(Flow{flow.kind, flow.cut, 0});
      if (!hasFloats || lists_.count(name) == 0) continue;
      codec = codecOf(codecAt(name, plan.place.isUp(flow), rungs));
    }
  }

  std::shared_ptr<const Codec> codecOf(const std::string& spec) const {
    std::shared_ptr<const Codec>& codec = codecs_[spec];
    if (!codec) codec = makeCodec(spec);
    return codec;
  }

  // ---- Simulation ----

  // A plan for each candidate that may be within the tolerance of the shortest step.
  std::vector<PlannedRun> simulated(const std::vector<Candidate>& candidates) const {
    std::vector<PlannedRun> plans;
    double shortest = std::numeric_limits<double>::infinity();
    std::size_t number = 0;
    for (const Candidate& candidate : candidates) {
      if (candidate.bound > (1 + kPlanTolerance) * shortest || number == kMaxSimulated) break;
      ++number;
      for (const Schedule& schedule : scheduleTable()) {
        const std::optional<PlannedRun> plan = largestThatFits(candidate, schedule);
        if (!plan) continue;
        shortest = std::min(shortest, plan->seconds);
        plans.push_back(*plan);
      }
    }
    std::erase_if(plans, [&](const PlannedRun& plan) {
      return plan.seconds > (1 + kPlanTolerance) * shortest;
    });
    return plans;
  }

  // Starting with the schedule's default, halves the number in flight until memory suffices.
  std::optional<PlannedRun> largestThatFits(const Candidate& candidate,
                                            const Schedule& schedule) const {
    const std::uint32_t min = schedule.minInFlight(candidate.microBatches);
    std::uint32_t inFlight = schedule.defaultInFlight(candidate.microBatches);
    while (true) {
      std::optional<PlannedRun> plan = planWith(candidate, schedule, inFlight);
      if (!plan || fits(*plan)) return plan;
      if (inFlight <= min) return std::nullopt;
      inFlight = std::max(min, inFlight / 2);
    }
  }

  bool fits(const PlannedRun& plan) const {
    return plan.clientMemory <= options_.clientMemory && plan.serverMemory <= options_.serverMemory;
  }

  // Returns nothing if the run would be refused, for example because a codec does not accept a
  // tensor.
  std::optional<PlannedRun> planWith(const Candidate& candidate, const Schedule& schedule,
                                     std::uint32_t inFlight) const {
    RunSpec spec = specWith(candidate.cuts);
    spec.microBatches = candidate.microBatches;
    spec.schedule = schedule.name;
    spec.inFlight = inFlight;
    try {
      const Place place = planOf(spec).place;
      for (const auto& [flow, list] : lists_) {
        if (!place.contains(*flowFromName(flow))) continue;
        spec.codecs[flow] = codecAt(flow, place.isUp(*flowFromName(flow)), candidate.rungs);
      }
      return predicted(planOf(spec), candidate.rungs.loss());
    } catch (const UsageError& error) {
      if (error.code() == "other-profile") throw;
      return std::nullopt;
    }
  }

  PlannedRun predicted(const RunPlan& plan, double loss) const {
    const StepCosts costs = costsOf(plan);
    PlannedRun planned;
    planned.spec = plan.spec;
    planned.spec.inFlight = plan.inFlight;
    planned.loss = loss;
    planned.bound = stepBound(costs, plan.schedule->splitsBackward);
    planned.seconds = simulateStep(costs, policyOf(*plan.schedule, plan.inFlight)).seconds;
    for (const auto& [flow, tensor] : costs.flows) {
      double& bytes = plan.place.isUp(flow) ? planned.bytesUp : planned.bytesDown;
      bytes += costs.microBatches * tensor.bytes;
    }
    planned.clientMemory = static_cast<double>(clientBytes(plan, {plan}, *run_.data.train));
    planned.serverMemory = static_cast<double>(serverBytes(plan));
    return planned;
  }

  // ---- Choice ----

  std::vector<PlannedRun> bestOf(std::vector<PlannedRun> plans) const {
    const auto rank = [](const PlannedRun& plan) {
      return std::tuple(plan.loss, plan.bytesUp + plan.bytesDown,
                        plan.clientMemory + plan.serverMemory, plan.seconds);
    };
    std::stable_sort(plans.begin(), plans.end(),
                     [&](const PlannedRun& a, const PlannedRun& b) { return rank(a) < rank(b); });
    std::vector<PlannedRun> best;
    for (PlannedRun& plan : plans) {
      const bool isSimilar = std::any_of(best.begin(), best.end(), [&](const PlannedRun& other) {
        return other.spec.cut0 == plan.spec.cut0 && other.spec.cut1 == plan.spec.cut1 &&
               other.spec.microBatches == plan.spec.microBatches &&
               other.spec.codecs == plan.spec.codecs;
      });
      if (!isSimilar) best.push_back(std::move(plan));
      if (best.size() == kMaxPlans) break;
    }
    return best;
  }

  UsageError tooLittleMemory() const {
    return {"no-plan",
            fmt::format("no plan fits into {} of memory on the client and {} on the server",
                        bytesText(options_.clientMemory), bytesText(options_.serverMemory)),
            "lower train.batch or eval.batch, or raise --client-memory or --server-memory"};
  }

  const PreparedRun& run_;
  const Profile& client_;
  const Profile& server_;
  const PlannerOptions& options_;
  const CodecLists lists_;
  const std::vector<std::uint32_t> microBatches_;
  mutable std::map<std::string, std::shared_ptr<const Codec>> codecs_;  // by spec
};

}  // namespace

Plans makePlans(const PreparedRun& run, const Profile& client, const Profile& server,
                const PlannerOptions& options) {
  checkProfiles(run.plan, client, server);
  return Planner(run, client, server, options).make();
}

}  // namespace cleave
