// When the members of a cohort learn that all parts of a checkpoint are saved.
#include "server/cohort/saved_by_all.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/error_code.h"

namespace cleave {
namespace {

class NotingLink : public EngineLink {
 public:
  void send(Message message) override {
    if (const auto* drain = std::get_if<Drain>(&message)) {
      leaving.push_back(drain->member);
    } else {
      sent.push_back(std::get<Saved>(std::move(message)));
    }
  }
  void commit(std::uint64_t) override {}
  std::vector<Saved> sent;
  std::vector<std::string> leaving;
};

struct Cohort {
  std::shared_ptr<NotingLink> first = std::make_shared<NotingLink>(),
                              second = std::make_shared<NotingLink>();
  SavedByAll saved;

  explicit Cohort(std::vector<std::string> members) : saved(std::move(members)) {
    saved.addClient(first);
    saved.addClient(second);
  }
};

Saved savedAt(std::uint64_t step, const std::string& sha256) {
  Saved saved;
  saved.step = step;
  saved.sha256 = sha256;
  return saved;
}

Saved failedAt(std::uint64_t step) {
  Saved saved;
  saved.step = step;
  saved.code = "cannot-write";
  saved.sentence = "the disk is full";
  return saved;
}

StepDecision checkpointAt(std::uint64_t step) {
  StepDecision decision;
  decision.step = step;
  decision.checkpoint = true;
  return decision;
}

TEST_CASE("all members are told when the last part is saved") {
  Cohort cohort({"north", "south"});
  for (const std::uint64_t step : {3, 6}) {
    cohort.saved.decided(checkpointAt(step));
    cohort.saved.savedByMember(1, savedAt(step, "of south"));
    cohort.saved.savedHere(savedAt(step, "of the body"));
    CHECK(cohort.first->sent.size() == step / 3 - 1);
    cohort.saved.savedByMember(0, savedAt(step, "of north"));
    for (const auto& link : {cohort.first, cohort.second}) {
      REQUIRE(link->sent.size() == step / 3);
      CHECK(link->sent.back().step == step);
      CHECK(link->sent.back().sha256 == "of the body");
    }
  }
}

TEST_CASE("if a member cannot save its part, the others learn its name and the reason") {
  Cohort cohort({"north", "south"});
  cohort.saved.decided(checkpointAt(3));
  cohort.saved.savedHere(savedAt(3, "of the body"));
  cohort.saved.savedByMember(0, savedAt(3, "of north"));
  cohort.saved.savedByMember(1, failedAt(3));
  REQUIRE(cohort.first->sent.size() == 1);
  CHECK(cohort.first->sent[0].code == "cannot-write");
  CHECK(cohort.first->sent[0].sentence == "south: the disk is full");
  CHECK(cohort.first->sent[0].sha256.empty());
}

TEST_CASE("a server without members to wait for tells its clients immediately") {
  Cohort single({});
  single.saved.decided(checkpointAt(3));
  single.saved.savedHere(savedAt(3, "of the body"));
  CHECK(single.first->sent.size() == 1);
  CHECK(errorCode([&] { single.saved.savedByMember(0, savedAt(3, "")); }) == "unexpected-message");
}

TEST_CASE("the others learn once that a member leaves") {
  Cohort cohort({"north", "south"});
  cohort.saved.leaves(1);
  CHECK(cohort.first->leaving == std::vector<std::string>{"south"});
  CHECK(cohort.second->leaving.empty());
  CHECK(errorCode([&] { cohort.saved.leaves(1); }) == "unexpected-message");
  Cohort single({});
  CHECK(errorCode([&] { single.saved.leaves(0); }) == "unexpected-message");
}

TEST_CASE("all learn once that a member joins") {
  Cohort cohort({"north", "south"});
  for (int n = 0; n < 2; ++n) cohort.saved.joins("west");
  for (const auto& link : {cohort.first, cohort.second}) {
    CHECK(link->leaving == std::vector<std::string>{"west"});
  }
}

TEST_CASE("a part that was not asked for is refused, and so is a second checkpoint at a time") {
  Cohort cohort({"north", "south"});
  const auto code = [&](std::size_t member, std::uint64_t step) {
    return errorCode([&] { cohort.saved.savedByMember(member, savedAt(step, "x")); });
  };
  CHECK(code(0, 3) == "unexpected-message");
  cohort.saved.decided(checkpointAt(3));
  CHECK(code(0, 2) == "unexpected-message");
  CHECK(code(2, 3) == "unexpected-message");
  cohort.saved.savedByMember(0, savedAt(3, "x"));
  CHECK(code(0, 3) == "unexpected-message");
  CHECK(errorCode([&] { cohort.saved.decided(checkpointAt(4)); }) == "too-many-in-flight");
}

}  // namespace
}  // namespace cleave
