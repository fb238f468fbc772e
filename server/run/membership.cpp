#include "server/run/membership.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "common/core/printable.h"
#include "common/files/sha256.h"

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

std::vector<wire::Commit> commonCommits(const std::vector<std::unique_ptr<Seat>>& members) {
  std::map<std::uint64_t, wire::Commit, std::greater<>> commits;
  for (const auto& seat : members) {
    for (const wire::Commit& each : seat->request().hello.committed()) {
      // A member that continued from a checkpoint which others had committed lacks the digest.
      if (!each.sha256().empty()) commits.try_emplace(each.step(), each);
    }
  }
  if (commits.empty()) return {};
  const std::uint64_t newest = commits.begin()->first;
  std::string lacking;
  for (const auto& seat : members) {
    const wire::Member& member = seat->request().hello.member();
    const auto lacks = [&](const auto& commit) {
      return std::ranges::find(member.saved(), commit.first) == member.saved().end();
    };
    if (std::erase_if(commits, lacks) > 0 && lacking.empty()) lacking = printable(member.name());
  }
  if (commits.empty()) {
    throw UsageError(
        "other-member",
        fmt::format("the cohort continues from step {}, but {} has no checkpoint of a step that "
                    "all members have",
                    newest, lacking),
        "continue the run of each member with --resume, or start a new run at all members");
  }
  std::vector<wire::Commit> common;
  for (auto& [step, commit] : commits) common.push_back(std::move(commit));
  return common;
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
  if (one.share_values() == two.share_values()) return;
  refuse(
      fmt::format("head and tail of {} differ from those of {}, who connected first", here, there),
      "use the same model file for all members of the cohort", "model");
}

}  // namespace cleave
