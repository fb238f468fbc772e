// Shares of a resource in virtual time: which user is next, which user is held back, and for how
// long.
#include "common/resources/fair_shares.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>

using namespace cleave;

namespace {

using User = FairShares::User;
using Users = std::vector<User>;

constexpr double kLead = FairShares::kLeadSeconds;

// A user that pauses after each use.
struct Simulated {
  double useSeconds = 0;
  double pauseSeconds = 0;
  double firstReady = 0;
  double readyAt = 0;
  User user = 0;
  int uses = 0;
};

// Simulates all users for `seconds`. Returns each user's number of uses.
std::vector<int> simulate(std::vector<Simulated> all, double seconds) {
  FairShares shares;
  for (Simulated& one : all) {
    one.readyAt = one.firstReady;
    one.user = shares.add("");
  }
  for (double time = 0; time < seconds;) {
    Simulated* chosen = nullptr;
    double nextReady = std::numeric_limits<double>::infinity();
    for (const User user : shares.order()) {
      const auto one =
          std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.user == user; });
      if (chosen == nullptr && one->readyAt <= time) chosen = &*one;
    }
    for (const Simulated& one : all) {
      if (one.readyAt > time) nextReady = std::min(nextReady, one.readyAt - time);
    }
    if (chosen == nullptr) {
      // Slightly more than the wait, so that rounding cannot stop the clock.
      const double idle = std::min(nextReady, shares.heldFor().value_or(nextReady)) + 1e-9;
      REQUIRE(idle < 1e6);
      shares.idled(idle);
      time += idle;
      continue;
    }
    time += chosen->useSeconds;
    shares.used(chosen->user, chosen->useSeconds);
    ++chosen->uses;
    chosen->readyAt = time + chosen->pauseSeconds;
  }
  std::vector<int> uses;
  for (const Simulated& one : all) uses.push_back(one.uses);
  return uses;
}

}  // namespace

TEST_CASE("the user that has used the resource the least goes first") {
  FairShares shares;
  const User a = shares.add("a"), b = shares.add("b"), c = shares.add("c");
  shares.used(a, 0.2);
  shares.used(b, 0.1);
  CHECK(shares.order() == Users{c, b, a});
  shares.remove(b);
  CHECK(shares.order() == Users{c, a});
}

TEST_CASE("a user with t seconds of use waits until the others have used t seconds") {
  FairShares shares;
  const User hog = shares.add("hog"), honest = shares.add("honest");
  shares.used(hog, 15);
  CHECK(shares.order() == Users{honest});
  SECTION("by use") {
    shares.used(honest, 14);
    CHECK(shares.order() == Users{honest});
    shares.used(honest, 1);
  }
  SECTION("by idle time") {
    for (int k = 0; k < 3; ++k) {
      shares.used(honest, 0, true);  // a use of no duration, such as a message
      shares.idled(5);
    }
  }
  SECTION("by both") {
    shares.idled(1);
    shares.used(honest, 14);
  }
  CHECK(shares.order().size() == 2);
  CHECK_FALSE(shares.heldFor());
}

TEST_CASE("users that are held back differently do not wait longer than their own leads") {
  FairShares shares;
  const User far = shares.add(""), near = shares.add("");
  shares.used(far, 15);
  shares.used(near, 0.01);
  const User joined = shares.add("");  // uses nothing
  shares.used(near, 1);
  CHECK(shares.order() == Users{joined});
  CHECK(*shares.heldFor() == Approx(1 - kLead));
  shares.idled(1 - kLead + 0.001);
  CHECK(shares.order() == Users{joined, near});
}

TEST_CASE("a user with a small lead is not delayed") {
  FairShares shares;
  const User a = shares.add("a"), b = shares.add("b");
  shares.used(a, kLead);
  CHECK(shares.order() == Users{b, a});
  shares.used(a, 0.01);
  CHECK(shares.order() == Users{b});
  CHECK(shares.heldFor() == Approx(0.01));
}

TEST_CASE("the wait for a silent user is bounded, and shorter between steps") {
  const bool inStep = GENERATE(false, true);
  CAPTURE(inStep);
  const double quiet = inStep ? FairShares::kQuietInStepSeconds : FairShares::kQuietBetweenSeconds;
  FairShares shares;
  const User hog = shares.add("hog"), silent = shares.add("silent");
  shares.used(silent, 0, inStep);
  shares.used(hog, 60);
  CHECK(shares.heldFor() == Approx(quiet));
  shares.idled(quiet - 0.5);
  CHECK(shares.order() == Users{silent});
  CHECK(shares.heldFor() == Approx(0.5));
  shares.idled(0.5);
  CHECK(shares.order() == Users{silent, hog});
  shares.used(hog, 60);
  // When the user returns, it has the credit of a user that arrived when the current use began, and
  // no more.
  shares.used(silent, 0);
  CHECK(shares.order() == Users{silent});
  shares.used(silent, 60);
  CHECK(shares.order().size() == 2);
}

TEST_CASE("no user waits for one that has left") {
  FairShares shares;
  const User hog = shares.add("hog"), other = shares.add("other");
  shares.used(hog, 15);
  CHECK(shares.order() == Users{other});
  shares.remove(other);
  CHECK(shares.order() == Users{hog});
  CHECK_FALSE(shares.heldFor());
}

TEST_CASE("leaving and returning gives no advantage") {
  FairShares shares;
  const User other = shares.add("other");
  shares.remove(shares.add("unused"));
  User hog = shares.add("hog");
  shares.used(hog, 15);
  shares.remove(hog);
  CHECK(shares.order() == Users{other});
  hog = shares.add("hog");
  CHECK(shares.order() == Users{other});
  const User fresh = shares.add("fresh");
  CHECK(shares.order() == Users{other, fresh});
  shares.used(other, 15);
  shares.used(fresh, 15);
  CHECK(shares.order().size() == 3);
}

TEST_CASE("a new user goes before those that used the resource, and is not charged for the past") {
  FairShares shares;
  const User hog = shares.add("hog");
  for (int k = 0; k < 100; ++k) shares.used(hog, 15);
  CHECK(shares.order() == Users{hog});  // a user without competitors is never held back
  const User fresh = shares.add("fresh");
  shares.used(hog, 15);  // this use was already running
  CHECK(shares.order() == Users{fresh});
  shares.used(fresh, 15);
  CHECK(shares.order().size() == 2);
}

#ifdef CLEAVE_SANITIZED
const std::vector<double> kLongUses = {0.2, 15.0};
#else
const std::vector<double> kLongUses = {0.05, 0.2, 1.0, 15.0, 60.0};
#endif

TEST_CASE("short uses with pauses get their share beside long uses without pauses") {
  const Simulated honest{0.005, 0.005};
  const int alone = simulate({honest}, 600)[0];
  const Simulated ordinary{0.005, 0.005, 0.002};
  CHECK(simulate({honest, ordinary}, 600)[0] > 0.9 * alone);
  for (const double seconds : kLongUses) {
    CAPTURE(seconds);
    const Simulated hog{seconds, 0};
    const std::vector<int> uses = simulate({honest, hog}, 1800);
    CHECK(uses[0] > 0.45 * 3 * alone);
    CHECK(uses[1] * seconds >
          0.45 * 1800);  // the hog is not held back longer than necessary either
    // With two hogs, the honest user gets a third.
    CHECK(simulate({hog, honest, hog}, 1800)[1] > 0.3 * 3 * alone);
  }
}

TEST_CASE("a user that shows activity without work gets no more than its share") {
  const Simulated honest{0.1, 0};
  const int alone = simulate({honest}, 600)[0];
  // The user shows activity from time to time, without work.
  for (const int stalled : {1, 5}) {
    CAPTURE(stalled);
    std::vector<Simulated> all = {honest};
    for (int k = 0; k < stalled; ++k) all.push_back({1e-6, 1.9, 0.1 * k});
    CHECK(simulate(all, 600)[0] > 0.45 * alone);
  }
}

TEST_CASE("a user's pauses do not delay the others") {
  // One user needs 40 % of the time and the other 10 %, so there is enough time for both.
  const Simulated much{0.04, 0.06}, little{0.01, 0.09, 0.05};
  const int alone = simulate({much}, 600)[0];
  CHECK(simulate({much, little}, 600)[0] > 0.85 * alone);
}
