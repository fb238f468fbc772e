// Members of a cohort that train one after the other.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "common/core/durable.h"
#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

// Three members with a key, and a server that is waited for.
class Relay {
 public:
  explicit Relay(Arguments more = {}) : more_(std::move(more)), server_(folder_) {
    writeKey("key", std::string(64, '7'));
  }

  void writeKey(const std::string& name, const std::string& digits) const {
    writeNewFile(folder_.path(name), digits + "\n", kPrivateFile);
  }
  Process start(const std::string& name, const Arguments& more = {},
                const Arguments& within = {}) const {
    const std::map<std::string, std::string> samples = {{"a", "100"}, {"b", "40"}, {"c", "150"}};
    return startClient("train", folder_.path(name),
                       with(with({"--server", server_.address(),
                                  "--set",    "cohort.id=abc",
                                  "--set",    "cohort.members=[a, b, c]",
                                  "--set",    "cohort.member=" + name,
                                  "--set",    "cohort.mode=relay",
                                  "--set",    "cohort.key_file=" + folder_.path("key"),
                                  "--set",    "train.epochs=2",
                                  "--set",    "checkpoint.every_steps=2",
                                  "--set",    "codec=none",
                                  "--set",    "train.learning_rate.schedule=cosine",
                                  "--set",    "data.train.size=" + samples.at(name)},
                                 more_),
                            more),
                       within);
  }
  std::map<std::string, Process> startAll(const Arguments& within = {},
                                          const std::string& failing = "") const {
    std::map<std::string, Process> members;
    for (const std::string name : {"a", "b", "c"}) {
      members.emplace(name, start(name, {}, name == failing ? within : Arguments{}));
    }
    return members;
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  RestartableServer& server() { return server_; }

  // Who had the turns, according to the summary of this member.
  json turns(const std::string& name) const {
    const json summary = summaryOf(path(name));
    json members = json::array();
    for (const auto& each : summary.at("cohort").at("attendance")) {
      members.push_back(each.at("present").at(0));
    }
    return members;
  }
  void checkSameModels() const {
    for (const std::string name : {"b", "c"}) CHECK((tensors(name) == tensors("a")));
  }
  std::string tensors(const std::string& name) const {
    return readTensors(path(name) + "/model.safetensors");
  }
  // The model is that of one process that trains with the samples of the members in their turns.
  void checkReplay() const {
    const json result = askJson({"verify", "--replay", path("a"), path("b"), path("c")});
    CHECK(result.at("values") > 0);
    CHECK(result.at("equal") == true);
  }

 private:
  const Arguments more_;
  const TemporaryFolder folder_;
  RestartableServer server_;
};

const Arguments kDropout = {"--set", "model={name: mlp, width: 16, depth: 3, dropout: 0.3}"};

TEST_CASE("members train in turns with the bits of one process, and all get the model") {
  using Case = std::pair<Arguments, json>;
  const json inTurns = {0, 1, 2, 0, 1, 2};
  for (const auto& [more, turns] :
       {Case(kDropout, inTurns),
        Case({"--set", "data.shape=[1, 16, 16]", "--set", "model={name: small_cnn, width: 4}",
              "--set", "train.staleness=1", "--set", "train.optimizer={name: adam}", "--set",
              "train.ema=0.9", "--set", "train.clip_norm=0.1"},
             inTurns),
        Case(with(kDropout, {"--set", "train.epochs=4", "--set", "cohort.turn_epochs=2"}),
             inTurns)}) {
    CAPTURE(more);
    const Relay relay(more);
    checkDone(relay.startAll());
    relay.checkSameModels();
    // The first two get the model at the end, in turns without steps.
    CHECK(relay.turns("c") == turns);
    CHECK(summaryOf(relay.path("a")).at("resumes") == 0);
    relay.checkReplay();
  }
}

TEST_CASE("the server cannot read what the members hand on") {
  const Relay relay(kDropout);
  checkDone(relay.startAll());
  std::size_t states = 0;
  for (const auto& entry : fs::recursive_directory_iterator(relay.path("store"))) {
    if (entry.path().extension() != ".state") continue;
    ++states;
    CHECK_THAT(readFile(entry.path()), !Contains("run:state") && !Contains("weight"));
  }
  CHECK(states == 1);
}

TEST_CASE("members that are never online together train in turns") {
  const Relay relay(kDropout);
  for (const auto& [name, isLast] : {std::pair("a", false),
                                     {"b", false},
                                     {"c", false},
                                     {"a", false},
                                     {"b", false},
                                     {"c", true}}) {
    Process member =
        fs::exists(relay.path(name)) ? startResume(relay.path(name)) : relay.start(name);
    if (isLast) {
      CHECK(finish(member).code == 0);
      continue;
    }
    const std::string next = name == std::string("a") ? "b" : name == std::string("b") ? "c" : "a";
    waitForText(member, "waiting for " + next + ", whose turn it is");
    member.signal(SIGINT);
    const Ended ended = finish(member);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.errors, Contains("train --resume"));
  }
  for (const std::string name : {"a", "b"}) CHECK(finish(startResume(relay.path(name))).code == 0);
  relay.checkSameModels();
  relay.checkReplay();
}

TEST_CASE("a member that is killed in its turn, or as it hands on, continues with the same bits") {
  const Relay undisturbed(kDropout);
  checkDone(undisturbed.startAll());
  for (const std::string place : {"batch:3:kill", "hand-over:1:kill", "handed-over:1:kill",
                                  "hand-over:2:kill", "checkpoint-state:1:kill"}) {
    CAPTURE(place);
    const Relay relay(kDropout);
    auto members = relay.startAll(failingAt(place), "b");
    REQUIRE(members.at("b").wait(kPatience));
    members.erase("b");
    members.emplace("b", startResume(relay.path("b")));
    checkDone(members);
    relay.checkSameModels();
    CHECK((relay.tensors("a") == undisturbed.tensors("a")));
  }
}

TEST_CASE("a turn that a member does not end is lost, and those that are there take theirs") {
  const Relay relay(with(kDropout, {"--set", "cohort.wait_seconds=0"}));
  REQUIRE(relay.start("a", {}, failingAt("handed-over:1:kill")).wait(kPatience));
  REQUIRE(relay.start("b", {}, failingAt("batch:3:kill")).wait(kPatience));
  CHECK(finish(relay.start("c")).code == 0);
  CHECK(relay.turns("c") == json({0, 2, 2}));
  for (const std::string name : {"a", "b"}) CHECK(finish(startResume(relay.path(name))).code == 0);
  relay.checkSameModels();
  relay.checkReplay();
}

TEST_CASE("a member waits for the turns of the others after its own last one") {
  const Relay relay(with(kDropout, {"--set", "cohort.wait_seconds=0", "--set", "train.epochs=1"}));
  std::map<std::string, Process> members;
  members.emplace("a", relay.start("a"));
  waitForText(members.at("a"), "waiting for b, whose turn it is");
  for (const std::string name : {"b", "c"}) {
    members.emplace(name, relay.start(name));
    waitForText(members.at(name), "the turn is over");
  }
  checkDone(members);
  CHECK(relay.turns("c") == json({0, 1, 2}));
  relay.checkSameModels();
}

TEST_CASE("more turns follow if the epochs are raised, with this member's own results") {
  const Relay relay(with(kDropout, {"--set", "train.learning_rate.schedule=constant", "--set",
                                    "keep.best=top1", "--set", "data.test.size=64"}));
  checkDone(relay.startAll());
  std::map<std::string, Process> members;
  for (const std::string name : {"a", "b", "c"}) {
    CHECK(summaryOf(relay.path(name)).contains("eval"));
    CHECK(readCsv(relay.path(name) + "/epochs.csv").size() == 2);
    members.emplace(name, startResume(relay.path(name), {"--set", "train.epochs=3"}));
  }
  checkDone(members);
  CHECK(relay.turns("c") == json({0, 1, 2, 0, 1, 2, 0, 1, 2}));
  for (const std::string name : {"a", "b", "c"}) {
    const auto epochs = readCsv(relay.path(name) + "/epochs.csv");
    REQUIRE(epochs.size() == 3);
    double best = 0;
    for (const auto& each : epochs) best = std::max(best, std::stod(each.at("eval_top1")));
    const json eval = summaryOf(relay.path(name)).at("eval");
    CHECK(eval.at("best_top1") == Approx(best));
    CHECK(eval.at("top1") == Approx(std::stod(epochs.back().at("eval_top1"))));
  }
  relay.checkSameModels();
}

TEST_CASE("turns go on with a server that was killed") {
  const Relay undisturbed(kDropout);
  checkDone(undisturbed.startAll());
  for (const std::string place : {"batch:20:kill", "checkpoint-state:3:kill"}) {
    CAPTURE(place);
    Relay relay(kDropout);
    relay.server().kill();
    relay.server().start(failingAt(place));
    const auto members = relay.startAll();
    REQUIRE(relay.server().server().process().wait(kPatience));
    relay.server().start();
    checkDone(members);
    relay.checkSameModels();
    CHECK((relay.tensors("a") == undisturbed.tensors("a")));
  }
}

TEST_CASE("a member with another key or other settings has no turn, and what differs is said") {
  const Relay relay(kDropout);
  relay.writeKey("other", std::string(64, '8'));
  relay.writeKey("short", "77");
  std::map<std::string, Process> members;
  members.emplace("a", relay.start("a"));
  waitForText(members.at("a"), "waiting for b, whose turn it is");
  const auto refused = [&](const Arguments& more) {
    const Ended ended = finish(relay.start("b", more));
    CHECK(ended.code == 2);
    fs::remove_all(relay.path("b"));
    return ended.errors;
  };
  CHECK_THAT(refused({"--set", "cohort.key_file=" + relay.path("other")}),
             Contains("other-member") && Contains("cohort.key_file of b is key "));
  CHECK_THAT(refused({"--set", "cohort.key_file=" + relay.path("short")}),
             Contains("not-a-key") && Contains("openssl rand -hex 32"));
  CHECK_THAT(refused({"--set", "cohort.key_file=''"}), Contains("openssl rand -hex 32"));
  CHECK_THAT(refused({"--set", "train.learning_rate.peak=0.5"}),
             Contains("other-member") && Contains("train.learning_rate.peak of b is 0.5"));
  CHECK_THAT(refused({"--set", "train.batch=20"}),
             Contains("other-member") && Contains("another model, other codecs or other settings"));
  CHECK_THAT(refused({"--set", "cohort.turn_epochs=4"}), Contains("cohort.turn_epochs"));
  CHECK_THAT(refused({"--set", "cohort.min_members=2"}), Contains("cohort.min_members"));
  CHECK_THAT(refused({"--trace", relay.path("trace.json")}), Contains("omit --trace"));
  CHECK_THAT(refused({"--set", "train.max_steps=5"}), Contains("train.max_steps"));
  CHECK_THAT(refused({"--set", "checkpoint.every_steps=0", "--set", "checkpoint.every_seconds=0"}),
             Contains("checkpoint"));
  for (const std::string name : {"b", "c"}) members.emplace(name, relay.start(name));
  checkDone(members);
  relay.checkSameModels();
}

}  // namespace
}  // namespace cleave::test
