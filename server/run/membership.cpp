#include "server/run/membership.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/core/printable.h"
#include "common/link/wire_messages.h"

namespace cleave {
namespace {

[[noreturn]] void refuse(const std::string& sentence, const std::string& hint,
                         const std::string& key) {
  throw UsageError("other-member", sentence, hint).about(key);
}

// The name of the first field that differs between two run specs.
std::string differingField(const RunSpec& first, const RunSpec& other) {
  const nlohmann::json ofFirst = toJson(first), ofOther = toJson(other);
  for (const auto& [name, value] : ofFirst.items()) {
    if (!ofOther.contains(name) || ofOther.at(name) != value) return name;
  }
  return "graph";
}

std::string shown(const std::string& value) {
  constexpr std::size_t kMax = 80;
  return printable(value.size() > kMax ? value.substr(0, kMax) + "…" : value);
}

}  // namespace

std::uint32_t memberNumber(const RunRequest& request) {
  const Cohort& cohort = request.spec.cohort;
  if (!cohort.exists()) return 0;
  const std::string& name = request.hello.member().name();
  const auto found = std::ranges::find(cohort.members, name);
  if (found == cohort.members.end()) {
    throw UsageError(
        "not-a-member",
        fmt::format("'{}' is not a member of the cohort {}", printable(name), printable(cohort.id)),
        "correct cohort.member, or add it to cohort.members of all members")
        .about("cohort.member");
  }
  // Without TLS, which is possible on loopback only, all clients are `local`.
  if (request.hasCertificate && request.identity != name) {
    throw UsageError("not-a-member",
                     fmt::format("the client's certificate has the name {}, but it wants to be {}",
                                 printable(request.identity), printable(name)),
                     "set cohort.member to the name in the certificate, or use the certificate of "
                     "that member")
        .about("cohort.member");
  }
  return static_cast<std::uint32_t>(found - cohort.members.begin());
}

std::string recordsIdentity(const RunRequest& request) {
  const Cohort& cohort = request.spec.cohort;
  return cohort.exists() && request.hasCertificate ? cohort.members.front() : request.identity;
}

void checkAnnounced(const RunRequest& request) {
  const wire::Member& member = request.hello.member();
  const Cohort& cohort = request.spec.cohort;
  if (cohort.isRelay() && (member.rounds() == 0 || member.rounds() > kMaxTurns / cohort.size())) {
    throw ProtocolError("bad-metadata",
                        fmt::format("a member announces {} turns", member.rounds()));
  }
  if (member.has_plan()) rosterFromWire(member.plan(), request.spec.cohort);
}

namespace {

bool contains(const std::vector<wire::Commit>& commits, const wire::Commit& commit) {
  return std::ranges::any_of(commits, [&](const wire::Commit& each) {
    return each.step() == commit.step() && each.sha256() == commit.sha256();
  });
}

// Who took part up to this step.
std::vector<Attendance> until(std::uint64_t step, std::vector<Attendance> attendance) {
  std::erase_if(attendance, [&](const Attendance& each) { return each.firstStep > step; });
  return attendance;
}

// What a member has saved.
struct Past {
  Announced member;
  Roster roster;  // as of its newest checkpoint
  std::map<std::uint64_t, std::uint64_t> evaluated;

  // Whether it has saved a checkpoint of the step that continues the same steps as `other`.
  bool has(std::uint64_t step, const Past& other) const {
    return evaluated.contains(step) && other.evaluated.contains(step) &&
           evaluated.at(step) == other.evaluated.at(step) &&
           until(step, roster.attendance) == until(step, other.roster.attendance);
  }
};

Past pastOf(const Announced& announced, const Cohort& cohort) {
  const wire::Member& member = announced.hello->member();
  Past past{announced, {}, {}};
  for (const wire::OwnState& each : member.saved()) past.evaluated[each.step()] = each.evaluated();
  if (member.has_plan()) past.roster = rosterFromWire(member.plan(), cohort);
  past.roster.train.resize(cohort.size());
  past.roster.evaluation.resize(cohort.size());
  return past;
}

// Adds what the member announces. Throws the error of checkSameData().
void addAnnounced(Roster& roster, const Announced& announced) {
  checkSameData(roster, announced);
  const wire::Member& member = announced.hello->member();
  roster.train[announced.number] = member.train_samples();
  roster.evaluation[announced.number] = member.evaluation_samples();
}

}  // namespace

void checkSameData(const Roster& roster, const Announced& announced) {
  const wire::Member& member = announced.hello->member();
  const auto check = [&](std::uint32_t known, std::uint32_t now, const std::string& what) {
    if (known == 0 || known == now) return;
    refuse(fmt::format("{} has {} {} samples, but had {} before", printable(member.name()), now,
                       what, known),
           "restore its data", "data");
  };
  check(roster.train[announced.number], member.train_samples(), "training");
  check(roster.evaluation[announced.number], member.evaluation_samples(), "evaluation");
}

bool haveBegun(const std::vector<Announced>& members) {
  return std::ranges::any_of(
      members, [](const Announced& member) { return member.hello->committed_size() > 0; });
}

bool haveSaved(const std::vector<Announced>& members) {
  return std::ranges::any_of(
      members, [](const Announced& member) { return member.hello->member().saved_size() > 0; });
}

std::vector<wire::Commit> candidates(const std::vector<Announced>& members) {
  std::vector<wire::Commit> commits;
  for (const Announced& member : members) {
    for (const wire::Commit& each : member.hello->committed()) {
      const auto& saved = member.hello->member().saved();
      const bool isSaved =
          std::ranges::find(saved, each.step(), &wire::OwnState::step) != saved.end();
      // A member that continued from a checkpoint which others had committed lacks the digest.
      if (!isSaved || each.sha256().empty() || contains(commits, each)) continue;
      commits.push_back(each);
    }
  }
  return commits;
}

Gathering gather(const Cohort& cohort, const std::vector<Announced>& members,
                 const std::vector<wire::Commit>* available) {
  std::vector<Past> pasts;
  for (const Announced& member : members) pasts.push_back(pastOf(member, cohort));
  std::map<std::uint64_t, wire::Commit, std::greater<>> commits;
  const Past* newest = nullptr;       // a member that has committed the newest checkpoint
  std::optional<std::uint64_t> lost;  // a checkpoint that a member has committed, but not any more
  for (const Past& past : pasts) {
    for (const wire::Commit& each : past.member.hello->committed()) {
      if (each.sha256().empty() || (available != nullptr && !contains(*available, each))) continue;
      if (!past.evaluated.contains(each.step())) {
        lost = std::max(lost.value_or(0), each.step());
        continue;
      }
      const bool isNew = commits.empty() || each.step() > commits.begin()->first;
      if (commits.try_emplace(each.step(), each).second && isNew) newest = &past;
    }
  }
  Gathering result;
  result.roster.train.resize(cohort.size());
  result.roster.evaluation.resize(cohort.size());
  const auto refuseLacking = [](std::uint64_t step, const std::string& who) {
    throw UsageError(
        "other-member",
        fmt::format("the cohort continues from step {}, but {} has no checkpoint of a step that "
                    "all members have",
                    step, who),
        "continue the run of each member with --resume, or start a new run at all members");
  };
  if (newest == nullptr) {
    if (lost) refuseLacking(*lost, "the member that made it");
    for (const Past& past : pasts) addAnnounced(result.roster, past.member);
    return result;
  }
  const Past reference = *newest;
  const std::uint64_t last = commits.begin()->first;
  // Those that made the newest checkpoint may go back to an older one that they have in common; the
  // others must have that one too.
  const std::vector<Attendance> before = until(last, reference.roster.attendance);
  const auto madeLast = [&](const Past& past) {
    if (before.empty()) return true;
    const std::vector<std::uint32_t>& present = before.back().present;
    return std::ranges::find(present, past.member.number) != present.end();
  };
  std::optional<std::uint64_t> common;
  for (const auto& [step, commit] : commits) {
    const auto has = [&, from = step](const Past& past) {
      return !madeLast(past) || past.has(from, reference);
    };
    if (!common && std::ranges::all_of(pasts, has)) common = step;
  }
  const std::uint64_t from = common.value_or(last);
  std::vector<Announced> joining;
  for (const Past& past : pasts) {
    if (!past.has(from, reference)) joining.push_back(past.member);
  }
  std::erase_if(pasts, [&](const Past& past) { return !past.has(from, reference); });
  if (!joining.empty() && (cohort.needsAll() || pasts.empty())) {
    refuseLacking(last, printable(joining.front().hello->member().name()));
  }
  const auto haveAll = [&](const auto& commit) {
    return std::ranges::all_of(pasts,
                               [&](const Past& past) { return past.has(commit.first, reference); });
  };
  std::erase_if(commits, [&](const auto& commit) { return !haveAll(commit); });
  for (auto& [step, commit] : commits) {
    result.evaluated[step] = reference.evaluated.at(step);
    result.commits.push_back(std::move(commit));
  }
  result.roster = reference.roster;
  for (const Past& past : pasts) addAnnounced(result.roster, past.member);
  for (const Announced& member : joining) {
    try {
      addAnnounced(result.roster, member);
      result.joining.push_back(member.number);
    } catch (const UsageError& error) {
      if (members.size() - result.unfit.size() <= cohort.minMembers) throw;
      result.unfit.emplace(member.number, error);
    }
  }
  return result;
}

wire::Commit commitOf(const TurnRecord& record) {
  wire::Commit commit;
  commit.set_step(record.step);
  commit.set_sha256(record.sha256);
  return commit;
}

Gathering gatherTurn(const Cohort& cohort, const Announced& member,
                     const std::optional<TurnRecord>& record,
                     const std::vector<wire::Commit>& available) {
  const Past past = pastOf(member, cohort);
  const std::uint64_t last = record ? record->step : 0;
  const std::uint64_t evaluated = record ? record->evaluated : 0;
  Gathering result;
  result.roster = record ? record->roster : Roster();
  result.roster.train.resize(cohort.size());
  result.roster.evaluation.resize(cohort.size());
  if (result.roster.attendance.size() == kMaxTurns) {
    throw UsageError(
        "bad-cohort",
        fmt::format("the members have had {} turns, and no more are possible", kMaxTurns),
        "start a new cohort with --set weights.file=… from the model of this one");
  }
  result.roster.attendance.push_back({last + 1, evaluated, {member.number}});
  addAnnounced(result.roster, member);
  // Of this turn, the steps that the member has made.
  for (const wire::Commit& each : available) {
    const bool isOwn = each.step() > last && past.evaluated.contains(each.step()) &&
                       until(each.step(), past.roster.attendance) == result.roster.attendance;
    if (!isOwn) continue;
    result.commits.push_back(each);
    result.evaluated[each.step()] = past.evaluated.at(each.step());
  }
  std::ranges::sort(result.commits, std::ranges::greater(), &wire::Commit::step);
  if (!result.commits.empty() || !record) return result;
  if (!contains(available, commitOf(*record))) {
    throw RunError("no-checkpoint",
                   fmt::format("the server has no undamaged checkpoint of step {}, with which the "
                               "last turn ended",
                               record->step),
                   "start a new cohort with --set weights.file=… from the model of a member");
  }
  result.commits = {commitOf(*record)};
  result.evaluated[last] = evaluated;
  result.joining = {member.number};
  return result;
}

UsageError tooManyChanges() {
  return UsageError("bad-cohort",
                    fmt::format("members have left or joined the cohort {} times", kMaxAttendances),
                    "start a new run with --set weights.file=… from the model of this one");
}

Roster rosterFrom(const Gathering& gathering, std::uint64_t step,
                  const std::vector<std::uint32_t>& present) {
  Roster roster = gathering.roster;
  roster.attendance = until(step, std::move(roster.attendance));
  if (!roster.attendance.empty() && roster.attendance.back().present == present) return roster;
  if (roster.attendance.size() == kMaxAttendances) throw tooManyChanges();
  const auto evaluated = gathering.evaluated.find(step);
  roster.attendance.push_back(
      {step + 1, evaluated == gathering.evaluated.end() ? 0 : evaluated->second, present});
  return roster;
}

void checkAgreed(const TurnRecord& record, const RunRequest& request) {
  const wire::Member& member = request.hello.member();
  const auto& agreed = member.agreed();
  for (const auto& [key, value] : record.agreed) {
    const auto found = agreed.find(key);
    if (found != agreed.end() && found->second == value) continue;
    refuse(fmt::format("{} of {} is {}, but {} in the last turn", printable(key),
                       printable(member.name()),
                       found == agreed.end() ? "not set" : shown(found->second), shown(value)),
           "use the same value for all members of the cohort", key);
  }
}

std::map<std::string, std::string> agreedOf(const RunRequest& request) {
  const auto& agreed = request.hello.member().agreed();
  std::map<std::string, std::string> values(agreed.begin(), agreed.end());
  values.erase("train.epochs");  // may be raised later
  return values;
}

void checkSameRun(const RunRequest& first, const RunRequest& other) {
  const wire::Member& one = first.hello.member();
  const wire::Member& two = other.hello.member();
  const std::string here = printable(two.name()), there = printable(one.name());
  for (const auto& [key, value] : one.agreed()) {
    const auto found = two.agreed().find(key);
    if (found != two.agreed().end() && found->second == value) continue;
    const std::string own = found == two.agreed().end() ? "no value" : shown(found->second);
    refuse(fmt::format("{} of {} is {}, but that of {}, who connected first, is {}", printable(key),
                       here, own, there, shown(value)),
           "use the same value for all members of the cohort", key);
  }
  if (first.spec != other.spec) {
    const std::string field = differingField(first.spec, other.spec);
    refuse(fmt::format("{} of {} differs from that of {}, who connected first", field, here, there),
           "use the same configuration and model file for all members of the cohort", field);
  }
  if (one.share_values() == two.share_values() && one.state_bytes() == two.state_bytes()) return;
  refuse(
      fmt::format("head and tail of {} differ from those of {}, who connected first", here, there),
      "use the same model file for all members of the cohort", "model");
}

}  // namespace cleave
