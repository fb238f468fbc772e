// Several clients that train one model.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const std::string kGraph =
    "model={name: graph, file: " CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2, cuts: [conv, pool]}";

bool isEqual(const std::string& run, const std::string& members, const Arguments& more) {
  return verifySteps(run, with({"--members", members}, more)).at("equal") == true;
}

TEST_CASE("members with unequal shares compute the bits of one client with all data") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "limits.sessions=16"});
  int run = 0;
  const auto check = [&](const std::string& members, Arguments more) {
    CAPTURE(members, more);
    if (more.front() != "--server") more.insert(more.end(), {"--server", server.address()});
    CHECK(isEqual(folder.path("run" + std::to_string(run++)), members, more));
  };
  const std::string dropout = "model={name: mlp, width: 16, depth: 3, dropout: 0.3}";
  const std::string norms = "model={name: small_cnn, width: 4, dropout: 0.3}";
  // With 16 members and batches of 30 samples, some members have none of a batch.
  for (const std::string members : {"1", "2", "3", "5", "16"}) {
    check(members, {"--set", dropout});
  }
  for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
    check("3", {"--set", "data.shape=[1, 16, 16]", "--set", norms, "--set",
                "train.schedule=" + schedule, "--set", "train.micro_batches=7"});
  }
  check("3", {"--set", dropout, "--set", "train.staleness=2"});
  check("2",
        {"--set", "data.shape=[1, 16, 16]", "--set", norms, "--set", "train.optimizer={name: adam}",
         "--set", "train.clip_norm=0.1", "--set", "train.ema=0.9"});
  check("3", {"--server", server.address() + "," + server.address(), "--set",
              "model={name: mlp, width: 16, depth: 4, cuts: [1, 2, 4]}"});
  check("3", {"--set", "data.shape=[1, 16, 16]", "--set", norms, "--set", "train.recompute=true",
              "--set", "train.micro_batches=1"});
}

TEST_CASE("an exported model trains in a cohort") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "models.allow=[graph]"});
  CHECK(isEqual(folder.path("run"), "3", {"--set", kGraph, "--server", server.address()}));
}

// A member of the cohort of a, b and c.
Process startMember(const TemporaryFolder& folder, const TestServer& server,
                    const std::string& name, const Arguments& more = {},
                    const Arguments& within = {}) {
  return startClient("train", folder.path(name),
                     with({"--server", server.address(), "--set", "cohort.id=abc", "--set",
                           "cohort.members=[a, b, c]", "--set", "cohort.member=" + name, "--set",
                           "train.epochs=2"},
                          more),
                     within);
}

TEST_CASE("members train together, and each has the model and the metrics of all") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Process a = startMember(folder, server, "a", {"--set", "data.train.size=100"});
  const Process b = startMember(folder, server, "b", {"--set", "data.train.size=7"});
  const Process c = startMember(folder, server, "c", {"--set", "data.train.size=150"});
  for (const Process* const member : {&a, &b, &c}) {
    const Ended ended = finish(*member);
    INFO(ended.errors);
    CHECK(ended.code == 0);
  }
  const auto epochs = readCsv(folder.path("a") + "/epochs.csv");
  REQUIRE(epochs.size() == 2);
  CHECK(epochs.front().at("samples") == "257");
  for (const std::string member : {"b", "c"}) {
    CHECK(readTensors(folder.path(member) + "/model.safetensors") ==
          readTensors(folder.path("a") + "/model.safetensors"));
    const auto own = readCsv(folder.path(member) + "/epochs.csv");
    REQUIRE(own.size() == 2);
    for (const std::string column : {"samples", "train_loss", "eval_loss"}) {
      CHECK(own.back().at(column) == epochs.back().at(column));
    }
  }
}

TEST_CASE(
    "a client that does not fit its cohort is refused, and the cohort waits for the right one") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Process a = startMember(folder, server, "a");
  const auto refused = [&](const std::string& name, const std::string& run, Arguments more) {
    more.insert(more.end(), {"--set", "connect.retry_seconds=0"});
    const Ended ended =
        finish(startClient("train", folder.path(run),
                           with({"--server", server.address(), "--set", "cohort.id=abc", "--set",
                                 "cohort.members=[a, b, c]", "--set", "cohort.member=" + name,
                                 "--set", "train.epochs=2"},
                                more)));
    CHECK(ended.code != 0);
    return ended.errors;
  };
  // The first member may not have connected yet.
  const Process b = startMember(folder, server, "b");
  const auto waits = [&] {
    return a.errors().find("waiting for other members") != std::string::npos;
  };
  for (int n = 0; n < 1000 && !waits(); ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  REQUIRE(waits());
  const auto status =
      nlohmann::json::parse(finish(Process::start({serverProgram(), "status", "--json", "--set",
                                                   "store=" + folder.path("store")}))
                                .output);
  const auto& session = status.at("sessions").at(0);
  CHECK(session.at("cohort") == "abc");
  CHECK(session.at("waits_for") == nlohmann::json::array({"c"}));
  CHECK_THAT(refused("c", "rate", {"--set", "train.learning_rate.peak=0.5"}),
             Contains("train.learning_rate.peak of c is 0.5") && Contains("other-member"));
  CHECK_THAT(refused("c", "model", {"--set", "model.width=8"}), Contains("other-member"));
  CHECK_THAT(refused("a", "again", {}), Contains("member-connected"));
  CHECK_THAT(refused("d", "stranger", {}), Contains("'d' is not one of cohort.members"));
  const Process c = startMember(folder, server, "c");
  for (const Process* const member : {&a, &b, &c}) CHECK(finish(*member).code == 0);
}

const Arguments kSaving = {"--set",
                           "checkpoint.every_steps=3",
                           "--set",
                           "data.train.size=200",
                           "--set",
                           "codec={activation/0: block:bits=8, activation/1: block:bits=8, "
                           "gradient/0: \"power:rank=2\", gradient/1: block:bits=8}"};

std::map<std::string, Process> startMembers(const TemporaryFolder& folder, const TestServer& server,
                                            const Arguments& more) {
  std::map<std::string, Process> members;
  for (const std::string name : {"a", "b", "c"}) {
    members.emplace(name, startMember(folder, server, name, more));
  }
  return members;
}

void checkDone(const std::map<std::string, Process>& members) {
  for (const auto& [name, member] : members) {
    const Ended ended = finish(member);
    CAPTURE(name);
    INFO(ended.errors);
    CHECK(ended.code == 0);
  }
}

void checkSameModels(const TemporaryFolder& expected, const TemporaryFolder& folder) {
  for (const std::string name : {"a", "b", "c"}) {
    CAPTURE(name);
    checkSameModel(expected.path("a"), folder.path(name));
  }
}

TEST_CASE("a member that is killed continues the run with the others, which wait for it") {
  const TemporaryFolder undisturbed;
  const TestServer server(undisturbed);
  checkDone(startMembers(undisturbed, server, kSaving));
  // While it writes its part of a checkpoint, and before and after it commits one.
  for (const std::string place : {"checkpoint-state:1:kill", "checkpoint-state:2:kill",
                                  "commit:1:kill", "commit:2:kill", "committed:3:kill"}) {
    for (const std::string killed : {"a", "c"}) {
      CAPTURE(place, killed);
      const TemporaryFolder folder;
      std::map<std::string, Process> members;
      for (const std::string name : {"a", "b", "c"}) {
        const Arguments within = name == killed ? failingAt(place) : Arguments{};
        members.emplace(name, startMember(folder, server, name, kSaving, within));
      }
      REQUIRE(members.at(killed).wait(kPatience));
      members.erase(killed);
      REQUIRE_FALSE(fs::exists(folder.path(killed + "/summary.json")));
      const Ended resumed = resume(folder.path(killed));
      INFO(resumed.errors);
      CHECK(resumed.code == 0);
      checkDone(members);
      checkSameModels(undisturbed, folder);
    }
  }
}

TEST_CASE("all members continue with a server that was killed") {
  const TemporaryFolder folder, undisturbed;
  RestartableServer server(folder);
  server.kill();
  server.start(failingAt("checkpoint-written:2:kill"));
  const auto members = startMembers(folder, server.server(), kSaving);
  REQUIRE(server.server().process().wait(kPatience));
  server.start();
  checkDone(members);
  checkDone(startMembers(undisturbed, server.server(), kSaving));
  checkSameModels(undisturbed, folder);
}

TEST_CASE("a member that has lost its run is refused, and what to do is said") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments many = with(kSaving, {"--set", "train.epochs=900"});
  auto members = startMembers(folder, server, many);
  while (!fs::exists(folder.path("a/checkpoints/commits.json"))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (auto& [name, member] : members) {
    member.signal(SIGKILL);
    REQUIRE(member.wait(kPatience));
  }
  fs::remove_all(folder.path("b"));
  const Process a = startResume(folder.path("a")), c = startResume(folder.path("c"));
  const Process b = startMember(folder, server, "b", many);
  for (const Process* const member : {&a, &b, &c}) {
    const Ended ended = finish(*member);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains("but b has no checkpoint") && Contains("--resume"));
  }
}

TEST_CASE("the run of members without checkpoints ends for all if one leaves, by its name") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments many =
      with(kNoCheckpoints, {"--set", "train.epochs=100000", "--set", "eval.every=0"});
  const Process a = startMember(folder, server, "a", many);
  Process b = startMember(folder, server, "b", many);
  const Process c = startMember(folder, server, "c", many);
  waitForSteps(folder.path("a"));
  b.signal(SIGINT);
  CHECK(finish(b).code == 1);
  for (const Process* const member : {&a, &c}) {
    const Ended ended = finish(*member);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.errors, Contains("b has left the cohort"));
  }
}

}  // namespace
}  // namespace cleave::test
