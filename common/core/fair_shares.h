// Decides which user may use a shared resource next, if a use cannot be interrupted: start-time
// fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) that keeps the resource free for users that
// are behind.
//
// Plain fair queueing gives the resource to any user as soon as no other user asks for it. If some
// uses take 15 s and others 15 ms, a short use then waits for a long one in every pause caused by a
// network round trip. So a user more than `kLeadSeconds` ahead of an active user is held back, even
// while the resource is idle. Idle time is charged to all users that are behind as if they had used
// it: a user that used the resource for t seconds waits at most t seconds, and an idle user costs
// the others no more than one that uses its share.
//
// Has no clock and no thread: the caller reports the seconds, and locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

class FairShares {
 public:
  using User = std::uint64_t;
  // A user whose lead is at most this is not held back, so that users with short uses do not wait
  // for each other.
  static constexpr double kLeadSeconds = 0.25;
  // Idle time since its last use after which a user no longer counts as active, so that the others
  // stop waiting for it: in the middle of a step, and between steps.
  static constexpr double kQuietInStepSeconds = 10;
  static constexpr double kQuietBetweenSeconds = 2;

  // The new user starts with the seconds that the owner's earlier users had used, so that leaving
  // and rejoining gives no advantage.
  User add(const std::string& owner);
  void remove(User user);

  // Reports a use of the resource. `inStep`: the user is in the middle of a step.
  void used(User user, double seconds, bool inStep = false);
  // Reports that the resource was idle.
  void idled(double seconds);

  // The users that may use the resource now, least used first.
  std::vector<User> order() const;
  // The idle time after which order() may return more users; nullopt if no user is held back.
  std::optional<double> heldFor() const;

 private:
  struct Account {
    std::string owner;
    double seconds = 0;       // used, or idle while behind; comparable between users
    double quietSeconds = 0;  // idle time since its last use
    bool isInStep = false;
    double workLeft() const {  // idle time until it is no longer active
      return (isInStep ? kQuietInStepSeconds : kQuietBetweenSeconds) - quietSeconds;
    }
    bool isAtWork() const { return workLeft() > 0; }
  };
  std::optional<double> minAtWork() const;
  double max() const;
  void raiseFloor();

  std::map<User, Account> users_;
  std::map<std::string, double> ended_;  // per owner: seconds of departed users above the floor
  double floor_ = 0;                     // where new users start
  User next_ = 1;
};

}  // namespace cleave
