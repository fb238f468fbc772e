#include "client/planning/planner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "client/codecs/codec_choice.h"
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
// The cuts for n - 1 servers from which the search for n servers starts.
constexpr std::size_t kMaxStarts = 20;

// The codecs that a flow may have, from the least to the most lossy one.
using CodecLists = std::map<std::string, std::vector<ParsedCodec>>;

// Positions in the codec lists, per direction.
struct Rungs {
  std::size_t up = 0, down = 0;

  // Tensors between two bodies cross both directions.
  std::size_t between() const { return std::max(up, down); }
  double loss() const { return lossOf(up) + lossOf(down); }
};

using AllCuts = std::vector<int>;  // of all bodies

struct Candidate {
  AllCuts cuts;
  std::uint32_t replicas = 1;
  std::uint32_t microBatches = 0;
  std::uint32_t staleness = 0;
  Rungs rungs;
  double bound = 0;  // seconds
};

struct CandidatePlan {
  RunPlan client;
  std::vector<RunPlan> bodies;  // of replicas, only the first one
};

std::int64_t outputValues(const BlockSpec& block) {
  std::int64_t values = 0;
  for (const BlockOutput& output : block.outputs) {
    values += static_cast<std::int64_t>(specOfOutput(output, 1).elements());
  }
  return values;
}

// Several consecutive blocks as one, without its forward. What passes from one to the next is in
// the memory of both, but exists once.
BlockSpec joined(std::span<const BlockSpec> blocks) {
  BlockSpec whole = blocks.back();
  whole.tensors.clear();
  whole.savedPerSample = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockSpec& block = blocks[b];
    whole.tensors.insert(whole.tensors.end(), block.tensors.begin(), block.tensors.end());
    whole.savedPerSample += block.savedPerSample;
    if (!block.passes || !whole.passes) continue;
    if (b + 1 < blocks.size()) whole.savedPerSample -= outputValues(block);
    whole.passes->training = std::max(whole.passes->training, block.passes->training);
    whole.passes->inference = std::max(whole.passes->inference, block.passes->inference);
  }
  return whole;
}

// The plan of a run of an exported model, whose parts are one block each. Their memory depends on
// that.
RunPlan withJoinedBlocks(RunPlan plan) {
  std::vector<int> ends = plan.stage.allCuts();
  ends.push_back(static_cast<int>(plan.blocks.size()));
  std::vector<BlockSpec> parts;
  int first = 0;
  for (const int end : ends) {
    parts.push_back(joined(
        std::span(plan.blocks)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first))));
    first = end;
  }
  const auto count = static_cast<int>(parts.size());
  plan.blocks = std::move(parts);
  plan.stage.cuts.cut0 = 1;
  plan.stage.cuts.cut1 = count - 1;
  plan.stage.innerCuts.clear();
  for (int cut = 2; cut < count - 1; ++cut) plan.stage.innerCuts.push_back(cut);
  return plan;
}

class Planner {
 public:
  Planner(const PreparedRun& run, const Profile& client, std::span<const Profile> servers,
          const PlannerOptions& options)
      : run_(run),
        client_(client),
        servers_(servers),
        options_(options),
        lists_(codecLists()),
        microBatches_(microBatchNumbers()),
        maxReplicas_(maxReplicas()),
        stalenesses_(stalenessNumbers()),
        firstCut_(firstCut()) {}

  Plans make() {
    Plans plans;
    plans.configured = predicted({run_.plan, run_.plansOfBodies()}, 0);
    std::vector<Candidate> candidates = allCandidates();
    plans.considered = candidates.size();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
    std::vector<PlannedRun> fast = simulated(candidates);
    if (fast.empty()) throw tooLittleMemory();
    plans.shortest =
        std::min_element(fast.begin(), fast.end(), [](const PlannedRun& a, const PlannedRun& b) {
          return a.seconds < b.seconds;
        })->seconds;
    plans.best = bestOf(std::move(fast));
    return plans;
  }

 private:
  // The configured number, and those in profiledMicroBatches() that the epoch's last batch allows.
  std::vector<std::uint32_t> microBatchNumbers() const {
    std::vector<std::uint32_t> numbers = {run_.settings.microBatches};
    ClientSettings settings = run_.settings;
    for (const std::uint32_t number : profiledMicroBatches(run_.plan.blocks, settings.batch)) {
      settings.microBatches = number;
      if (number != numbers.front() &&
          fitsBatchNorm(run_.plan.blocks, minMicroBatch(settings, *run_.data.train))) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }

  // The last batches of the training data and of the test data may have fewer micro-batches.
  std::map<std::uint32_t, std::uint32_t> maxReplicas() const {
    std::map<std::uint32_t, std::uint32_t> all;
    ClientSettings settings = run_.settings;
    for (const std::uint32_t number : microBatches_) {
      settings.microBatches = number;
      all[number] = std::min(options_.replicas, minMicroBatchCount(settings, run_.data));
    }
    return all;
  }

  // The lowest position of the first cut: before it are the first parameters, or it is the
  // configured one. A server after a head without parameters would receive the inputs.
  int firstCut() const {
    const std::vector<BlockSpec>& blocks = run_.plan.blocks;
    const int configured = run_.plan.stage.cuts.cut0;
    int cut = 1;
    while (cut < configured && parameterCount(blocks, 0, cut) == 0) ++cut;
    return cut;
  }

  std::vector<std::uint32_t> stalenessNumbers() const {
    std::vector<std::uint32_t> numbers = {0};
    if (options_.staleness == 0 || run_.settings.scalesLoss()) return numbers;
    for (std::uint32_t number = 1; number < options_.staleness; number *= 2) {
      numbers.push_back(number);
    }
    numbers.push_back(options_.staleness);
    return numbers;
  }

  CodecLists codecLists() const {
    CodecLists lists;
    for (const auto& [flow, codec] : run_.settings.codecs) lists[flow] = {codec};
    for (const auto& [flow, choices] : run_.settings.autoCodecs) lists[flow] = choices;
    if (options_.codecs.empty()) return lists;
    for (auto& [flow, list] : lists) list = options_.codecs;
    return lists;
  }

  std::size_t maxRungs() const {
    std::size_t max = 1;
    for (const auto& [flow, list] : lists_) max = std::max(max, list.size());
    return max;
  }

  // With another number of cuts than configured, the first and the last cut keep their codecs, and
  // the cuts between them have those of the first configured cut between servers, or else of the
  // last one. A flow that the configured cuts lack, because their head is frozen, has none.
  const std::vector<ParsedCodec>& codecsFor(Flow flow, int lastCut) const {
    const int last = run_.bodies.back().place.lastCut;
    if (lastCut != last && flow.cut > 0) flow.cut = flow.cut == lastCut ? last : 1;
    const auto list = lists_.find(flowName(flow));
    return list == lists_.end() ? noCodec_ : list->second;
  }

  const ParsedCodec& codecAt(Flow flow, std::span<const RunPlan> bodies, const Rungs& rungs) const {
    const Place& first = bodies.front().place;
    const Place& last = bodies.back().place;
    const bool isUp = flow == activationAt(first.firstCut) || flow == gradientAt(last.lastCut);
    const bool isDown = flow == activationAt(last.lastCut) || flow == gradientAt(first.firstCut);
    const std::vector<ParsedCodec>& list = codecsFor(flow, last.lastCut);
    return list[std::min(isUp ? rungs.up : isDown ? rungs.down : rungs.between(), list.size() - 1)];
  }

  bool keepsCuts() const { return options_.keepsCuts || !run_.settings.inserts.empty(); }

  // The settings with these cuts, without codecs.
  ClientSettings settingsWith(const AllCuts& cuts) const {
    ClientSettings settings = run_.settings;
    settings.cuts = cuts;
    settings.bodyReplicas.clear();
    settings.codecs.clear();
    settings.inFlight = 0;
    settings.staleness = 0;
    settings.schedule = "priority";
    return settings;
  }

  // Whether the head is frozen depends on the cuts.
  CandidatePlan planOf(const ClientSettings& settings) const {
    const Dataset& train = *run_.data.train;
    const UserModel* const model = run_.userModel.get();
    CandidatePlan plan{clientPlan(makeRunSpec(settings, run_.data, model), settings, model), {}};
    plan.bodies = bodyPlans(plan.client, settings, train, model);
    plan.client.samplesOnDisk = settings.samplesOnDisk;
    if (settings.bodies() == 1) plan.bodies.resize(1);
    return plan;
  }

  StepCosts costsOf(const CandidatePlan& plan) const {
    StepCosts costs =
        profiledCosts(plan.client, plan.bodies, run_.settings.batch, client_, servers_);
    options_.setLinks(costs);
    return costs;
  }

  // ---- Bounds ----

  std::vector<Candidate> allCandidates() const {
    std::vector<Candidate> candidates;
    if (keepsCuts()) {
      addCandidates(run_.plan.stage.allCuts(), candidates);
      return candidates;
    }
    std::map<AllCuts, double> bounds;  // the lowest bound with these cuts
    const auto consider = [&](const AllCuts& cuts) {
      const auto [found, isNew] = bounds.try_emplace(cuts);
      if (isNew) found->second = addCandidates(cuts, candidates);
      return found->second;
    };
    const int last = static_cast<int>(run_.plan.blocks.size()) - 1;
    for (int cut0 = firstCut_; cut0 < last; ++cut0) {
      for (int cut1 = cut0 + 1; cut1 <= last; ++cut1) consider({cut0, cut1});
    }
    for (std::size_t number = 2; number <= servers_.size(); ++number) {
      for (AllCuts cuts : bestCuts(bounds, number)) {
        cuts.push_back(0);
        for (int cut = firstCut_; cut <= last; ++cut) {
          if (std::find(cuts.begin(), cuts.end() - 1, cut) != cuts.end() - 1) continue;
          AllCuts more = cuts;
          more.back() = cut;
          std::sort(more.begin(), more.end());
          consider(more);
        }
      }
      for (AllCuts cuts : bestCuts(bounds, number + 1)) {
        while (moveOneCut(cuts, last, consider)) {
        }
      }
    }
    return candidates;
  }

  // The combinations of `size` cuts with the lowest bounds, at most kMaxStarts.
  static std::vector<AllCuts> bestCuts(const std::map<AllCuts, double>& bounds, std::size_t size) {
    std::vector<std::pair<double, AllCuts>> sorted;
    for (const auto& [cuts, bound] : bounds) {
      if (cuts.size() == size) sorted.emplace_back(bound, cuts);
    }
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() > kMaxStarts) sorted.resize(kMaxStarts);
    std::vector<AllCuts> best;
    for (auto& [bound, cuts] : sorted) best.push_back(std::move(cuts));
    return best;
  }

  // Tries to move each cut to all positions between its neighbours, and keeps the move that lowers
  // the bound most: noisy profiles have many local minima. Returns false if no move lowers it.
  template <typename Consider>
  bool moveOneCut(AllCuts& cuts, int last, const Consider& consider) const {
    AllCuts best = cuts;
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      const int min = c == 0 ? firstCut_ : cuts[c - 1] + 1;
      const int max = c + 1 == cuts.size() ? last : cuts[c + 1] - 1;
      AllCuts moved = cuts;
      for (moved[c] = min; moved[c] <= max; ++moved[c]) {
        if (consider(moved) < consider(best)) best = moved;
      }
    }
    const bool moves = best != cuts;
    cuts = best;
    return moves;
  }

  // Adds a candidate for each number of replicas and micro-batches, staleness and pair of codec
  // positions. Returns the lowest bound without replicas, which only a single body may have.
  double addCandidates(const AllCuts& cuts, std::vector<Candidate>& candidates) const {
    double lowest = std::numeric_limits<double>::infinity();
    CandidatePlan plan = planOf(settingsWith(cuts));
    const std::size_t rungs = maxRungs();
    for (const std::uint32_t number : microBatches_) {
      const std::uint32_t max = cuts.size() > 2 ? 1 : maxReplicas_.at(number);
      plan.client.spec.microBatches = number;
      StepCosts costs = costsOf(plan);
      for (std::size_t up = 0; up < rungs; ++up) {
        for (std::size_t down = 0; down < rungs; ++down) {
          useCodecs(plan.bodies, {up, down});
          setFlows(costs, plan.client, plan.bodies, run_.settings.batch, client_, servers_);
          for (std::uint32_t replicas = 1; replicas <= max; ++replicas) {
            costs.body().replicas = replicaCosts(plan.bodies.front(), replicas, number);
            options_.setLinks(costs);
            for (const std::uint32_t staleness : stalenesses_) {
              const double bound = std::min(boundOf(costs, staleness, false).seconds,
                                            boundOf(costs, staleness, true).seconds);
              candidates.push_back({cuts, replicas, number, staleness, {up, down}, bound});
              if (replicas == 1) lowest = std::min(lowest, bound);
            }
          }
        }
      }
    }
    return lowest;
  }

  static StepBound boundOf(const StepCosts& costs, std::uint32_t staleness, bool splitsBackward) {
    return staleness == 0 ? stepBound(costs, splitsBackward)
                          : steadyStepBound(costs, staleness, splitsBackward);
  }

  void useCodecs(std::vector<RunPlan>& bodies, const Rungs& rungs) const {
    for (RunPlan& body : bodies) {
      for (auto& [flow, codec] : body.codecs) {
        const bool hasFloats = isFloat(flowSpec(body.blocks, body.stage.cuts, flow, 1).dtype);
        if (hasFloats) codec.own = codecAt({flow.kind, flow.cut}, bodies, rungs).codec;
      }
    }
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
        if (candidate.staleness > 0 && !supportsStaleness(schedule, candidate.replicas)) continue;
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
    const std::uint32_t inProgress = candidate.microBatches * (candidate.staleness + 1);
    const std::uint32_t min = schedule.minInFlight(inProgress);
    std::uint32_t inFlight =
        schedule.defaultInFlight(inProgress, static_cast<std::uint32_t>(candidate.cuts.size()) - 1);
    while (true) {
      std::optional<PlannedRun> plan = planWith(candidate, schedule, inFlight);
      if (!plan || fits(*plan)) return plan;
      if (inFlight <= min) return std::nullopt;
      inFlight = std::max(min, inFlight / 2);
    }
  }

  bool fits(const PlannedRun& plan) const {
    for (std::size_t b = 0; b < plan.serverMemory.size(); ++b) {
      if (plan.serverMemory[b] > options_.serverMemory[b]) return false;
    }
    return plan.clientMemory <= options_.clientMemory;
  }

  // Returns nothing if the run would be refused, for example because a codec does not accept a
  // tensor.
  std::optional<PlannedRun> planWith(const Candidate& candidate, const Schedule& schedule,
                                     std::uint32_t inFlight) const {
    ClientSettings settings = settingsWith(candidate.cuts);
    settings.bodyReplicas.assign(settings.bodies(), candidate.replicas);
    settings.microBatches = candidate.microBatches;
    settings.schedule = schedule.name;
    settings.inFlight = inFlight;
    settings.staleness = candidate.staleness;
    std::optional<CandidatePlan> plan;
    try {
      const CandidatePlan plain = planOf(settings);
      for (const RunPlan& body : plain.bodies) {
        for (const Flow flow : body.flows()) {
          if (flow.tensor > 0) continue;
          settings.codecs[flowName(flow)] = codecAt(flow, plain.bodies, candidate.rungs);
        }
      }
      plan = planOf(settings);
    } catch (const UsageError&) {
      return std::nullopt;
    }
    return predicted(*plan, candidate.rungs.loss());
  }

  PlannedRun predicted(const CandidatePlan& plan, double loss) const {
    const RunPlan& client = plan.client;
    const StepCosts costs = costsOf(plan);
    PlannedRun planned;
    planned.spec = client.spec;
    planned.spec.inFlight = client.inFlight;
    planned.cuts = client.stage.allCuts();
    planned.loss = loss;
    planned.bound = boundOf(costs, client.spec.staleness, client.schedule->splitsBackward);
    planned.bottleneckServer = bottleneckServer(costs, planned.bound);
    planned.seconds = steadyStepSeconds(costs, policyOf(*client.schedule, client.inFlight),
                                        client.spec.staleness);
    const ClientBytes bytes = clientBytesOf(costs);
    const double microBatches = static_cast<double>(costs.microBatches) / costs.members;
    planned.bytesUp = microBatches * bytes.up;
    planned.bytesDown = microBatches * bytes.down;
    setMemory(planned, plan);
    for (const RunPlan& body : plan.bodies) {
      planned.replicas.push_back(body.spec.replicas);
      planned.codecs.insert(body.spec.codecs.begin(), body.spec.codecs.end());
    }
    return planned;
  }

  void setMemory(PlannedRun& planned, const CandidatePlan& divided) const {
    CandidatePlan plan = divided;
    if (run_.userModel) {
      plan.client = withJoinedBlocks(std::move(plan.client));
      for (RunPlan& body : plan.bodies) body = withJoinedBlocks(std::move(body));
    }
    planned.clientMemory =
        static_cast<double>(clientBytes(plan.client, plan.bodies, *run_.data.train));
    for (const RunPlan& body : plan.bodies) {
      planned.serverMemory.push_back(static_cast<double>(serverBytes(body)));
    }
  }

  // ---- Choice ----

  std::vector<PlannedRun> bestOf(std::vector<PlannedRun> plans) const {
    const auto rank = [](const PlannedRun& plan) {
      return std::tuple(
          plan.spec.staleness, plan.loss, *std::ranges::max_element(plan.replicas),
          plan.bytesUp + plan.bytesDown,
          std::accumulate(plan.serverMemory.begin(), plan.serverMemory.end(), plan.clientMemory),
          plan.seconds);
    };
    std::stable_sort(plans.begin(), plans.end(),
                     [&](const PlannedRun& a, const PlannedRun& b) { return rank(a) < rank(b); });
    std::vector<PlannedRun> best;
    for (PlannedRun& plan : plans) {
      const bool isSimilar = std::any_of(best.begin(), best.end(), [&](const PlannedRun& other) {
        return other.cuts == plan.cuts && other.replicas == plan.replicas &&
               other.spec.microBatches == plan.spec.microBatches &&
               other.spec.staleness == plan.spec.staleness && other.codecs == plan.codecs;
      });
      if (!isSimilar) best.push_back(std::move(plan));
      if (best.size() == kMaxPlans) break;
    }
    return best;
  }

  UsageError tooLittleMemory() const {
    std::string limits;
    for (const double limit : options_.serverMemory) {
      limits += (limits.empty() ? "" : ", ") + bytesText(limit);
    }
    return {"no-plan",
            fmt::format("no plan fits into {} of memory on the client and {} on the server{}",
                        bytesText(options_.clientMemory), limits, servers_.size() > 1 ? "s" : ""),
            "lower train.batch or eval.batch, or raise --client-memory or --server-memory"};
  }

  const PreparedRun& run_;
  const Profile& client_;
  const std::span<const Profile> servers_;
  const PlannerOptions& options_;
  const CodecLists lists_;
  const std::vector<ParsedCodec> noCodec_ = {parseCodec("none")};
  const std::vector<std::uint32_t> microBatches_;
  const std::map<std::uint32_t, std::uint32_t> maxReplicas_;  // by number of micro-batches
  const std::vector<std::uint32_t> stalenesses_;
  const int firstCut_;
};

}  // namespace

double PlannedRun::maxServerMemory() const {
  return *std::max_element(serverMemory.begin(), serverMemory.end());
}

PreparedRun profiledRun(const RunOptions& options, const Profile& client) {
  PreparedRun run = resolveRun(options, Purpose::measurement);
  requireProfilable(run);
  return dividedAt(std::move(run), cutsOf(client));
}

UsageError noOverlapOfCohorts() {
  return UsageError("bad-staleness", "steps of a cohort that overlap cannot be predicted",
                    "set train.staleness to 0, and omit --staleness")
      .about("train.staleness");
}

Plans makePlans(const PreparedRun& run, const Profile& client, std::span<const Profile> servers,
                const PlannerOptions& options) {
  const std::uint32_t staleness = std::max(options.staleness, run.plan.spec.staleness);
  if (run.settings.cohort.atOnce() > 1 && staleness > 0) throw noOverlapOfCohorts();
  checkProfiles(run.plan, client, servers);
  return Planner(run, client, servers, options).make();
}

}  // namespace cleave
