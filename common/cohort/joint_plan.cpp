#include "common/cohort/joint_plan.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "common/core/error.h"
#include "common/core/random.h"

namespace cleave {
namespace {

Roster withAttendance(Roster roster) {
  if (!roster.attendance.empty()) return roster;
  Attendance all;
  all.present.resize(roster.train.size());
  std::iota(all.present.begin(), all.present.end(), 0u);
  roster.attendance = {all};
  return roster;
}

}  // namespace

JointPlan::Set::Set(const std::vector<std::uint32_t>& byMember, std::uint32_t batchSize,
                    std::uint32_t m)
    : batch(batchSize), largest(Division::of(batchSize, m).largest()) {
  std::uint32_t samples = 0;
  for (const std::uint32_t each : byMember) {
    first.push_back(samples);
    samples += each;
  }
  first.push_back(samples);
}

std::uint32_t JointPlan::Set::memberOf(std::uint32_t sample) const {
  assert(sample < first.back());
  const auto after = std::upper_bound(first.begin(), first.end(), sample);
  return static_cast<std::uint32_t>(after - first.begin() - 1);
}

std::vector<std::uint32_t> JointPlan::Set::samplesOf(
    const std::vector<std::uint32_t>& members) const {
  std::vector<std::uint32_t> samples;
  for (const std::uint32_t member : members) {
    for (std::uint32_t s = first[member]; s < first[member + 1]; ++s) samples.push_back(s);
  }
  return samples;
}

JointPlan::JointPlan(const Options& options, Roster roster)
    : options_(options),
      roster_(withAttendance(std::move(roster))),
      train_(roster_.train, options.batch, options.microBatches),
      evaluation_(roster_.evaluation, options.evalBatch, options.microBatches) {
  assert(roster_.train.size() == roster_.evaluation.size());
  for (std::size_t a = 0; a < roster_.attendance.size(); ++a) check(a);
  for (std::size_t a = 0; a < roster_.attendance.size(); ++a) plan(a);
  const auto& attendance = roster_.attendance;
  const auto& counted = options.isRelay ? attendance.back() : attendance.front();
  for (const std::uint32_t member : counted.present) {
    samples_ += roster_.train[member];
  }
}

// ---- Epochs ----

// Throws UsageError "bad-cohort" unless the attendance is possible after the one before it.
void JointPlan::check(std::size_t attendance) const {
  const Attendance& from = roster_.attendance[attendance];
  const Attendance* const before = attendance == 0 ? nullptr : &from - 1;
  if (from.follows(before, roster_.train.size()) && batchesOf(attendance) > 0) return;
  throw UsageError("bad-cohort",
                   "the members that take part from step " + std::to_string(from.firstStep) +
                       " on have no training samples, or do not follow those before",
                   "check data and cohort.members of all members")
      .about("cohort.members");
}

// Adds the epochs from the attendance's first step on.
void JointPlan::plan(std::size_t attendance) {
  const std::uint64_t first = roster_.attendance[attendance].firstStep;
  const std::uint64_t steps = batchesOf(attendance);
  if (attendance == 0) {
    stretches_.push_back({1, 1, steps, 0, false});
    return;
  }
  const Stretch last = stretchAt(first);
  const std::uint64_t epoch = last.firstEpoch + (first - last.firstStep) / last.steps;
  const std::uint64_t begin = last.firstStep + (epoch - last.firstEpoch) * last.steps;
  while (!stretches_.empty() && stretches_.back().firstEpoch > epoch) stretches_.pop_back();
  if (first == begin) {
    if (!stretches_.empty() && stretches_.back().firstEpoch == epoch) stretches_.pop_back();
    stretches_.push_back({epoch, begin, steps, attendance, false});
    return;
  }
  if (!last.isChanged) {
    if (stretches_.back().firstEpoch == epoch) stretches_.pop_back();
    stretches_.push_back({epoch, begin, 0, last.attendance, true});
    stretches_.back().steps = trainingBatches(epoch).all.size();  // with all changes in it
  }
  const std::uint64_t next = begin + stretches_.back().steps;
  stretches_.push_back({epoch + 1, next, steps, attendance, false});
}

const JointPlan::Stretch& JointPlan::stretchOf(std::uint64_t epoch) const {
  const auto after = std::ranges::upper_bound(stretches_, epoch, {}, &Stretch::firstEpoch);
  return *(after - 1);
}

const JointPlan::Stretch& JointPlan::stretchAt(std::uint64_t step) const {
  const auto after = std::ranges::upper_bound(stretches_, step, {}, &Stretch::firstStep);
  return *(after - 1);
}

std::uint64_t JointPlan::epochOf(std::uint64_t step) const {
  assert(step > 0);
  const Stretch& stretch = stretchAt(step);
  return stretch.firstEpoch + (step - stretch.firstStep) / stretch.steps;
}

std::uint64_t JointPlan::lastStepOf(std::uint64_t epoch) const {
  if (epoch == 0) return 0;
  const Stretch& stretch = stretchOf(epoch);
  return stretch.firstStep + (epoch - stretch.firstEpoch + 1) * stretch.steps - 1;
}

std::uint64_t JointPlan::batchesOf(std::size_t attendance) const {
  std::uint64_t samples = 0;
  for (const std::uint32_t member : roster_.attendance[attendance].present) {
    samples += roster_.train[member];
  }
  return (samples + train_.batch - 1) / train_.batch;
}

// ---- Batches ----

void JointPlan::Set::cut(const std::vector<std::uint32_t>& samples, std::size_t attendance,
                         Batches& batches) const {
  auto begin = static_cast<std::uint32_t>(batches.order.size());
  batches.order.insert(batches.order.end(), samples.begin(), samples.end());
  const auto all = static_cast<std::uint32_t>(batches.order.size());
  while (begin < all) {
    const std::uint32_t end = begin + std::min(batch, all - begin);
    batches.all.push_back({begin, end, static_cast<std::uint32_t>(attendance)});
    begin = end;
  }
}

JointPlan::Batches JointPlan::trainingBatches(std::uint64_t epoch) const {
  const Stretch& stretch = stretchOf(epoch);
  const std::uint64_t begin = stretch.firstStep + (epoch - stretch.firstEpoch) * stretch.steps;
  std::size_t attendance = stretch.attendance;
  Batches batches;
  RandomKey key = randomKey(options_.seed, "shuffle", {epoch});
  std::vector<std::uint32_t> left = train_.samplesOf(roster_.attendance[attendance].present);
  for (;;) {
    std::vector<std::uint32_t> order =
        randomPermutation(key, static_cast<std::uint32_t>(left.size()));
    for (std::uint32_t& each : order) each = left[each];
    train_.cut(order, attendance, batches);
    if (++attendance == roster_.attendance.size()) return batches;
    const Attendance& next = roster_.attendance[attendance];
    if (next.firstStep >= begin + batches.all.size()) return batches;
    batches.all.resize(next.firstStep - begin);
    batches.order.resize(batches.all.back().end);
    std::vector<bool> isTrained(train_.first.back());
    for (const std::uint32_t sample : batches.order) isTrained[sample] = true;
    left = train_.samplesOf(next.present);
    std::erase_if(left, [&](std::uint32_t sample) { return isTrained[sample]; });
    key = randomKey(options_.seed, "shuffle", {epoch, next.firstStep});
  }
}

JointPlan::Batches JointPlan::evaluationBatches(std::size_t attendance) const {
  Batches batches;
  evaluation_.cut(evaluation_.samplesOf(roster_.attendance[attendance].present), attendance,
                  batches);
  return batches;
}

JointPlan::Divisions JointPlan::divide(const Set& set, Batches batches) const {
  Divisions divisions;
  for (const Batches::Batch& batch : batches.all) {
    if (options_.isRelay) {
      divisions.push_back(Division::of(batch.end - batch.begin, options_.microBatches));
      continue;
    }
    std::vector<std::uint32_t> byMember(roster_.train.size());
    for (const std::uint32_t sample : batches.samplesOf(batch)) ++byMember[set.memberOf(sample)];
    std::vector<std::uint32_t> ofPresent;
    for (const std::uint32_t member : roster_.attendance[batch.attendance].present) {
      ofPresent.push_back(byMember[member]);
    }
    divisions.push_back(Division::ofMembers(ofPresent, set.largest));
  }
  return divisions;
}

const JointPlan::Divisions& JointPlan::known(Phase phase, std::uint64_t number) const {
  const auto found = known_.find({phase, number});
  if (found != known_.end()) return found->second;
  // Steps that overlap belong to two epochs at most, and a peer may name any.
  constexpr std::size_t kMaxKnown = 4;
  if (known_.size() == kMaxKnown) known_.clear();
  const bool isTraining = phase == Phase::train;
  Divisions divisions =
      isTraining ? divide(train_, trainingBatches(number))
                 : divide(evaluation_, evaluationBatches(static_cast<std::size_t>(number)));
  return known_.emplace(std::pair(phase, number), std::move(divisions)).first->second;
}

Division JointPlan::division(Phase phase, std::uint64_t step) const {
  assert(step > 0);
  const std::lock_guard lock(mutex_);
  if (phase == Phase::train) {
    const std::uint64_t epoch = epochOf(step);
    return known(phase, epoch).at(step - lastStepOf(epoch - 1) - 1);
  }
  const auto after = std::ranges::lower_bound(roster_.attendance, step, {}, &Attendance::evaluated);
  const auto attendance = after == roster_.attendance.begin() ? after : after - 1;
  const Divisions& divisions =
      known(phase, static_cast<std::uint64_t>(attendance - roster_.attendance.begin()));
  if (divisions.empty()) return {};
  return divisions[(step - attendance->evaluated - 1) % divisions.size()];
}

// ---- Passes ----

JointPlan::Pass JointPlan::passOf(const Set& set, Batches batches,
                                  std::optional<std::uint32_t> member) const {
  const auto memberOf = [&](std::uint32_t sample) { return set.memberOf(sample); };
  Pass pass;
  for (const Batches::Batch& batch : batches.all) {
    const std::span<std::uint32_t> samples = batches.samplesOf(batch);
    if (!member) std::ranges::stable_sort(samples, {}, memberOf);
    const std::size_t before = pass.order.size();
    for (const std::uint32_t sample : samples) {
      if (!member) {
        pass.order.push_back(sample);
      } else if (memberOf(sample) == *member) {
        pass.order.push_back(sample - set.first[*member]);
      }
    }
    pass.sizes.push_back(static_cast<std::uint32_t>(pass.order.size() - before));
  }
  return pass;
}

JointPlan::Pass JointPlan::trainingPass(std::optional<std::uint32_t> member,
                                        std::uint64_t epoch) const {
  return passOf(train_, trainingBatches(epoch), member);
}

JointPlan::Pass JointPlan::evaluationPass(std::optional<std::uint32_t> member) const {
  return passOf(evaluation_, evaluationBatches(roster_.attendance.size() - 1), member);
}

}  // namespace cleave
