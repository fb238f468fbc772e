// A cohort: clients, its members, that train one model with the samples of all. Each has head and
// tail, and its own samples. They train together, and the bodies compute the micro-batches of all;
// or one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Each member's on their own, then the sums in the order of the members: a slow one delays only
// the end of the step.
inline constexpr std::string_view kByMember = "by-member";
// All in the order of the batch: a slow member delays those after it. One set of gradients.
inline constexpr std::string_view kGlobal = "global";

// Together: each batch has samples of all members that take part.
inline constexpr std::string_view kJoint = "joint";
// One after the other: each trains on its own samples in its turn, and hands head and tail on.
inline constexpr std::string_view kRelay = "relay";

struct Cohort {
  std::string id;                          // empty: the run is not one of a cohort
  std::vector<std::string> members;        // their names; a member's number is its position
  std::string mode = std::string(kJoint);  // kJoint or kRelay
  // In a run spec: samples of the batches of training and evaluation, of all members together.
  std::uint32_t batch = 0;
  std::uint32_t evalBatch = 0;
  // How the servers order the micro-batches of a step, and add their gradients: kByMember or
  // kGlobal.
  std::string order = std::string(kByMember);
  // With fewer members than this, the run does not continue; 0: it needs all. The others join at a
  // checkpoint, whenever they come.
  std::uint32_t minMembers = 0;
  // The number of members, the first among them, with which the run begins; 0: all.
  std::uint32_t beginMembers = 0;
  // How long a run that continues waits for those that made its last steps, once `minMembers` are
  // connected; and how long it then goes on before another one may join. In a relay: how long the
  // others wait for the member whose turn it is.
  std::uint32_t waitSeconds = 60;

  bool exists() const { return !id.empty(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(members.size()); }
  bool isRelay() const { return exists() && mode == kRelay; }
  // The number of members that train at the same time; 1 without a cohort.
  std::uint32_t atOnce() const { return exists() && !isRelay() ? size() : 1; }
  bool needsAll() const { return !isRelay() && (minMembers == 0 || minMembers >= size()); }
  bool isByMember() const { return order == kByMember; }
  std::uint32_t neededToBegin() const { return beginMembers == 0 ? size() : beginMembers; }

  bool operator==(const Cohort&) const = default;
};
inline constexpr std::uint32_t kMaxMembers = 64;
inline constexpr std::uint32_t kMaxWaitSeconds = 1000000;

// Who takes part in a cohort's run, from a step on.
struct Attendance {
  std::uint64_t firstStep = 1;
  std::uint64_t evaluated = 0;         // evaluation batches before this step
  std::vector<std::uint32_t> present;  // numbers of members, in their order

  // Whether it is the first one (`before` is null), or possible after `before`, in a cohort of this
  // many members.
  bool follows(const Attendance* before, std::size_t members) const;
  bool operator==(const Attendance&) const = default;
};
inline constexpr std::size_t kMaxAttendances = 128;
inline constexpr std::size_t kMaxTurns = 1024;  // attendances of a relay, each of one member

// What is known about the members of a cohort.
struct Roster {
  std::vector<std::uint32_t> train;       // training samples, by member
  std::vector<std::uint32_t> evaluation;  // evaluation samples, by member
  // In the order of their first steps, the first of which is 1; empty: all members take part in all
  // steps.
  std::vector<Attendance> attendance = {};

  bool operator==(const Roster&) const = default;
};

}  // namespace cleave
