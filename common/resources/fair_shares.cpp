#include "common/resources/fair_shares.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace cleave {

FairShares::User FairShares::add(const std::string& owner) {
  raiseFloor();
  Account account;
  account.owner = owner;
  const auto ended = ended_.find(owner);
  account.seconds = ended == ended_.end() ? floor_ : std::max(floor_, ended->second);
  users_.emplace(next_, std::move(account));
  return next_++;
}

void FairShares::remove(User user) {
  const auto node = users_.extract(user);
  if (node.empty()) return;
  double& seconds = ended_[node.mapped().owner];
  seconds = std::max(seconds, node.mapped().seconds);
  // The owner may have added the next user before this one left.
  for (auto& [other, account] : users_) {
    if (account.isNew && account.owner == node.mapped().owner) {
      account.seconds = std::max(account.seconds, seconds);
    }
  }
}

void FairShares::used(User user, double seconds, bool inStep) {
  assert(seconds >= 0);
  const auto found = users_.find(user);
  if (found == users_.end()) return;
  Account& account = found->second;
  // The user was idle; the share that it did not use is lost.
  if (!account.isAtWork()) account.seconds = std::max(account.seconds, floor_);
  account.isNew = false;
  account.quietSeconds = 0;
  account.isInStep = inStep;
  raiseFloor();  // before the seconds are added, so that the floor excludes this use
  account.seconds += seconds;
}

void FairShares::idled(double seconds) {
  assert(seconds >= 0);
  const double limit = max();
  const std::optional<double> min = minAtWork();
  for (auto& [user, account] : users_) {
    const bool isHeld = min && account.seconds > *min + kLeadSeconds;
    if (isHeld) continue;  // otherwise, those that hold it back would never catch up with it
    account.quietSeconds += seconds;
    account.seconds = std::max(account.seconds, std::min(account.seconds + seconds, limit));
  }
  floor_ = std::max(floor_, std::min(floor_ + seconds, limit));
  raiseFloor();
}

std::vector<FairShares::User> FairShares::order() const {
  const std::optional<double> min = minAtWork();
  std::vector<std::pair<double, User>> free;
  for (const auto& [user, account] : users_) {
    if (!min || account.seconds <= *min + kLeadSeconds) free.emplace_back(account.seconds, user);
  }
  std::sort(free.begin(), free.end());
  assert(!min || !free.empty());  // the one that holds the others back
  std::vector<User> users;
  for (const auto& [seconds, user] : free) users.push_back(user);
  return users;
}

std::optional<double> FairShares::heldFor() const {
  const std::optional<double> min = minAtWork();
  std::optional<double> wait;
  const auto sooner = [&wait](double seconds) { wait = std::min(wait.value_or(seconds), seconds); };
  for (const auto& [user, account] : users_) {
    if (min && account.seconds > *min + kLeadSeconds) {
      sooner(account.seconds - *min - kLeadSeconds);
    }
  }
  if (!wait) return std::nullopt;
  for (const auto& [user, account] : users_) {
    const bool holdsBack = account.isAtWork() && account.seconds <= *min + kLeadSeconds;
    if (holdsBack) sooner(account.workLeft());
  }
  return wait;
}

std::optional<double> FairShares::minAtWork() const {
  std::optional<double> min;
  for (const auto& [user, account] : users_) {
    if (account.isAtWork()) min = std::min(min.value_or(account.seconds), account.seconds);
  }
  return min;
}

double FairShares::max() const {
  double max = floor_;
  for (const auto& [user, account] : users_) max = std::max(max, account.seconds);
  for (const auto& [owner, seconds] : ended_) max = std::max(max, seconds);
  return max;
}

void FairShares::raiseFloor() {
  floor_ = std::max(floor_, minAtWork().value_or(floor_));
  std::erase_if(ended_, [this](const auto& entry) { return entry.second <= floor_; });
}

}  // namespace cleave
