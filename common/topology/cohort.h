// A cohort: clients, its members, that train one model with the samples of all. Each has head and
// tail, and its own samples; the bodies compute the micro-batches of all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

struct Cohort {
  std::string id;                    // empty: the run is not one of a cohort
  std::vector<std::string> members;  // their names; a member's number is its position
  // In a run spec: samples of the batches of training and evaluation, of all members together.
  std::uint32_t batch = 0;
  std::uint32_t evalBatch = 0;

  bool exists() const { return !id.empty(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(members.size()); }

  bool operator==(const Cohort&) const = default;
};
inline constexpr std::uint32_t kMaxMembers = 64;

// What the members of a cohort have announced, by member.
struct Roster {
  std::vector<std::uint32_t> train;       // training samples
  std::vector<std::uint32_t> evaluation;  // evaluation samples

  bool operator==(const Roster&) const = default;
};

}  // namespace cleave
