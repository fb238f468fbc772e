// Decides which user may use a shared resource next, for resources whose use cannot be interrupted.
// Based on start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with one addition: the
// resource is kept free for users that are behind.
//
// Plain fair queueing gives the resource to any user if no other user requests it at the moment.
// Suppose that user A has uses of 15 ms with pauses for network round trips, and user B has uses of
// 15 s. B could then start in each of A's pauses, and A would wait 15 s each time. So a user that
// is more than `kLeadSeconds` ahead of an active user is held back, even while the resource is
// idle. Idle time is charged to all users that are not held back, as if they had used the resource:
// a user that used the resource for t seconds waits at most t seconds, and an idle user costs the
// others no more than one that uses its share.
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
  // Maximum lead of a user that is not held back, so that users with short uses do not wait for
  // each other.
  static constexpr double kLeadSeconds = 0.25;
  // A user no longer counts as active if the resource has been idle for this long since the user's
  // last use. The others then stop waiting for it. The limit is longer in the middle of a step.
  static constexpr double kQuietInStepSeconds = 10;
  static constexpr double kQuietBetweenSeconds = 2;

  // The new user starts with the seconds that the owner's earlier users had used, so that leaving
  // and rejoining gives no advantage. If one of them leaves before the new user's first use, its
  // seconds count too.
  User add(const std::string& owner);
  void remove(User user);

  // Reports that the user has used the resource. `inStep`: the user is in the middle of a step.
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
    double seconds = 0;       // seconds used, and idle seconds charged to the user
    double quietSeconds = 0;  // idle time since its last use
    bool isNew = true;        // has not used the resource yet
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
  // Per owner: seconds by which its departed users exceed the floor.
  std::map<std::string, double> ended_;
  double floor_ = 0;  // seconds with which new users start
  User next_ = 1;
};

}  // namespace cleave
