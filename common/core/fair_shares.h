// Which user may use a shared resource next, if a use cannot be interrupted: start-time fair
// queueing (Goyal, Vin and Cheng, SIGCOMM 1996) that keeps the resource free for users that are
// behind.
//
// Plain fair queueing gives the resource to any user as soon as no other user asks for it. With
// uses of 15 s beside uses of 15 ms, the short ones then wait for a long one in every pause that a
// network round trip makes. So a user that is more than `kLeadSeconds` ahead of a user at work is
// held back, even while the resource is idle. Idle time counts for all users that are behind as if
// they had used it: a user that used the resource for t seconds waits for at most t seconds, and a
// user that asks for nothing takes no more from the others than one that uses its share.
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
  // A user with no larger lead is not held back, so that users with short uses do not wait for each
  // other.
  static constexpr double kLeadSeconds = 0.25;
  // Idle time since its last use after which a user is no longer at work, so that the others no
  // longer wait for it: in the middle of a step, and between two steps.
  static constexpr double kQuietInStepSeconds = 10;
  static constexpr double kQuietBetweenSeconds = 2;

  // The new user begins with what the owner's earlier users had used: leaving and coming back is no
  // advantage.
  User add(const std::string& owner);
  void remove(User user);

  // The user has used the resource. `inStep`: it is in the middle of a step.
  void used(User user, double seconds, bool inStep = false);
  // The resource was idle for so long.
  void idled(double seconds);

  // The users that may use it now, the one that has used least first.
  std::vector<User> order() const;
  // The idle time after which order() may have more users; nothing if no user is held back.
  std::optional<double> heldFor() const;

 private:
  struct Account {
    std::string owner;
    double seconds = 0;       // used, or idled away while behind; comparable between users
    double quietSeconds = 0;  // idle time since its last use
    bool isInStep = false;
    double workLeft() const {  // idle time until it is no longer at work
      return (isInStep ? kQuietInStepSeconds : kQuietBetweenSeconds) - quietSeconds;
    }
    bool isAtWork() const { return workLeft() > 0; }
  };
  std::optional<double> leastAtWork() const;
  double most() const;
  void raiseFloor();

  std::map<User, Account> users_;
  std::map<std::string, double> ended_;  // by owner: seconds of users that left ahead of the floor
  double floor_ = 0;                     // where users begin
  User next_ = 1;
};

}  // namespace cleave
