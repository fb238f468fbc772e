// Several clients that train one model.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

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
  check("3", {"--set", dropout, "--set", "cohort.order=global"});
  check("3", {"--set", dropout, "--set", "train.staleness=1", "--set", "cohort.order=global"});
  check("2",
        {"--set", "data.shape=[1, 16, 16]", "--set", norms, "--set", "train.optimizer={name: adam}",
         "--set", "train.clip_norm=0.1", "--set", "train.ema=0.9"});
  check("3", {"--server", server.address() + "," + server.address(), "--set",
              "model={name: mlp, width: 16, depth: 4, cuts: [1, 2, 4]}"});
  check("3", {"--set", "data.shape=[1, 16, 16]", "--set", norms, "--set", "train.recompute=true",
              "--set", "train.micro_batches=1"});
}

TEST_CASE("the configuration of a cohort is verified on one machine before its members exist") {
  const TemporaryFolder folder;
  CHECK(isEqual(folder.path("run"), "3",
                {"--set", "cohort={id: abc, members: [a, b, c, d, e], min_members: 4}", "--set",
                 "checkpoint.every_steps=3"}));
}

TEST_CASE("verify does not wait for other members, and says how to verify a cohort") {
  const auto refused = [](const Arguments& more) {
    const Ended ended = ask(with({"verify", "--config", configFile("synthetic.yaml"), "--set",
                                  "cohort={id: abc, members: [a, b]}"},
                                 more));
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(refused({"--set", "cohort.member=a"}), Contains("--members K"));
  CHECK_THAT(refused({}), Contains("--members K"));
  CHECK_THAT(refused({"--members", "2", "--set", "cohort.mode=relay"}),
             Contains("--replay RUN of each member"));
}

TEST_CASE("the codec of a cohort is none, unless its configuration names another one") {
  const Arguments member = {"--set", "cohort={id: abc, members: [a, b], member: a}"};
  const auto configured = [&](const Arguments& more) {
    return askJson(with({"train", "--config", configFile("synthetic.yaml"), "--dry-run", "--json"},
                        more))
        .at("config")
        .get<std::string>();
  };
  CHECK_THAT(configured({}), Contains("\ncodec: auto\n") && Contains("every: 100\n"));
  CHECK_THAT(configured(member), Contains("\ncodec: none\nquality:\n  every: 0\n"));
  CHECK_THAT(configured({"--set", "privacy.defence=[{kind: distance_correlation, weight: 1}]"}),
             Contains("\ncodec: none\n"));
  const std::string some =
      configured(with(member, {"--set", "codec={activation/0: block:bits=8}"}));
  CHECK_THAT(some, Contains("activation/0: block:bits=8\n") && Contains("gradient/1: none\n"));
  CHECK_THAT(configured(with(member, {"--set", "codec=block:bits=4"})),
             Contains("\ncodec: block:bits=4\n"));
  const Ended refused = ask(with({"train", "--config", configFile("synthetic.yaml")},
                                 {"--set", "cohort={id: abc, members: [a, b]}"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Contains("a member of a cohort needs cohort.member\n") &&
                                 Contains("such as --set cohort.member=a"));
}

TEST_CASE("the memory of a cohort's body counts the gradients of each member") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "limits.sessions=16"});
  // 4 MB per member
  const Arguments wide = {"--set", "model={name: mlp, width: 1024, depth: 3}", "--server",
                          server.address()};
  CHECK(isEqual(folder.path("run"), "16", wide));
  CHECK(isEqual(folder.path("global"), "16", with(wide, {"--set", "cohort.order=global"})));
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
  const Process a =
      startMember(folder, server, "a", {"--set", "data.train.size=100", "--set", "data.seed=1"});
  const Process b =
      startMember(folder, server, "b", {"--set", "data.train.size=7", "--set", "data.seed=2"});
  const Process c =
      startMember(folder, server, "c", {"--set", "data.train.size=150", "--set", "data.seed=3"});
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
  // The evaluation samples of the members are equal in number, so the mean of all is that of their
  // own means; they are different samples.
  double sum = 0;
  std::set<std::string> losses;
  for (const std::string member : {"a", "b", "c"}) {
    const auto own = readCsv(folder.path(member) + "/epochs.csv");
    losses.insert(own.back().at("own_eval_loss"));
    sum += std::stod(own.back().at("own_eval_loss"));
    CHECK(summaryOf(folder.path(member)).at("own_eval").at("loss") ==
          Approx(std::stod(own.back().at("own_eval_loss"))));
  }
  CHECK(losses.size() == 3);
  CHECK(sum / 3 == Approx(std::stod(epochs.back().at("eval_loss"))));
}

TEST_CASE("each member's trace has the actions of all members on the server") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  std::map<std::string, Process> members;
  for (const std::string name : {"a", "b", "c"}) {
    members.emplace(name, startMember(folder, server, name,
                                      {"--trace", folder.path(name + ".json"), "--trace-steps",
                                       "100", "--set", "train.batch=64", "--set",
                                       name == "c" ? "data.train.size=300" : "data.train.size=70",
                                       "--set", "train.micro_batches=3"}));
  }
  for (const auto& [name, member] : members) {
    const Ended ended = finish(member);
    INFO(ended.errors);
    CHECK(ended.code == 0);
    const auto trace = nlohmann::json::parse(readFile(folder.path(name + ".json")));
    std::map<std::string, std::set<std::pair<int, int>>> seen;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.value("cat", "") != "compute") continue;
      const std::string action = event.at("name");
      const auto& args = event.at("args");
      if (!args.contains("micro_batch")) continue;
      seen[action.substr(0, action.find(' '))].emplace(args.at("step"), args.at("micro_batch"));
    }
    CHECK(seen["BodyForward"].size() > seen["HeadForward"].size());
    CHECK(seen["BodyBackward"] == seen["BodyForward"]);
    std::set<int> steps;
    for (const auto& [step, i] : seen["BodyForward"]) steps.insert(step);
    CHECK(steps.size() == 13);  // of the 14 of all members, but the first
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
  const auto session = [&] {
    const auto status =
        nlohmann::json::parse(finish(Process::start({serverProgram(), "status", "--json", "--set",
                                                     "store=" + folder.path("store")}))
                                  .output);
    const auto& sessions = status.at("sessions");
    return sessions.empty() ? nlohmann::json::object() : sessions.at(0);
  };
  const auto waitsForC = [&] {
    return session().value("waits_for", nlohmann::json()) == nlohmann::json::array({"c"});
  };
  for (int n = 0; n < 1000 && !waitsForC(); ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  REQUIRE(waitsForC());
  CHECK(session().at("cohort") == "abc");
  waitForText(a, "waiting for other members");
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

void checkSameModels(const TemporaryFolder& expected, const TemporaryFolder& folder) {
  for (const std::string name : {"a", "b", "c"}) {
    CAPTURE(name);
    checkSameModel(expected.path("a"), folder.path(name));
  }
}

nlohmann::json cohortOf(const std::string& run) {
  return nlohmann::json::parse(readFile(run + "/cohort.json"));
}

TEST_CASE("a member that is killed continues the run with the others, which wait for it") {
  const TemporaryFolder undisturbed;
  const TestServer server(undisturbed);
  checkDone(startMembers(undisturbed, server, kSaving));
  // While it writes its part of a checkpoint, and before and after it commits one.
  for (const std::string place : {"checkpoint-state:1:kill", "checkpoint-state:2:kill",
                                  "commit:1:kill", "commit:2:kill", "committed:4:kill"}) {
    for (const std::string killed : {"a", "c"}) {
      CAPTURE(place, killed);
      const TemporaryFolder folder;
      std::map<std::string, Process> members;
      for (const std::string name : {"a", "b", "c"}) {
        const Arguments within = name == killed ? failingAt(place) : Arguments{};
        members.emplace(name, startMember(folder, server, name, kSaving, within));
      }
      REQUIRE(members.at(killed).wait(kPatience));
      // The live report says for whom the others wait.
      const nlohmann::json waits = {killed};
      for (int n = 0; n < 6000 && cohortOf(folder.path("b")).at("waits_for") != waits; ++n) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      CHECK(cohortOf(folder.path("b")).at("waits_for") == waits);
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

TEST_CASE(
    "a member that fails when the others end the run is told so, also by a restarted server") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  std::vector<Process> others;
  for (const std::string name : {"a", "b"}) {
    others.push_back(
        startMember(folder, server.server(), name, {"--set", "cohort.wait_seconds=1"}));
  }
  const Process c = startMember(folder, server.server(), "c", {"--set", "cohort.wait_seconds=1"},
                                failingAt("trained:1:kill"));
  REQUIRE(c.wait(kPatience));
  for (const Process& member : others) CHECK(finish(member).code == 0);
  server.kill();
  server.start();
  const Ended late = resume(folder.path("c"));
  CHECK(late.code == 1);
  CHECK_THAT(late.errors, Contains("error [cohort-done]") &&
                              Contains("has ended without this member") &&
                              Contains("ask another member for its model.safetensors"));
}

TEST_CASE("the members of a cohort that is done train for more epochs") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  checkDone(startMembers(folder, server, {"--set", "cohort.wait_seconds=0"}));
  std::vector<Process> more;
  for (const std::string name : {"a", "b", "c"}) {
    more.push_back(startResume(folder.path(name), {"--set", "train.epochs=3"}));
  }
  for (const Process& member : more) {
    const Ended ended = finish(member);
    INFO(ended.errors);
    CHECK(ended.code == 0);
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

TEST_CASE("Ctrl-C at any member makes a checkpoint, from which all continue") {
  for (const std::string left : {"a", "b"}) {
    CAPTURE(left);
    const TemporaryFolder folder;
    const TestServer server(folder);
    auto members =
        startMembers(folder, server,
                     {"--set", "checkpoint.every_seconds=1000", "--set", "train.epochs=40", "--set",
                      "data.train.size=200", "--set", "eval.every=0"});
    waitForSteps(folder.path(left));
    members.at(left).signal(SIGINT);
    const Ended ended = finish(members.at(left));
    INFO(ended.errors);
    CHECK(ended.code == 1);
    members.erase(left);
    CHECK(resume(folder.path(left)).code == 0);
    checkDone(members);
    for (const std::string name : {"a", "b", "c"}) {
      const auto summary = summaryOf(folder.path(name));
      CHECK(summary.at("resumes") == 1);
      CHECK(summary.at("steps_redone") == 0);
    }
  }
}

// A run that goes on with two of three members, and without codecs.
const Arguments kLeaving = {"--set", "cohort.min_members=2",
                            "--set", "cohort.wait_seconds=0",
                            "--set", "checkpoint.every_steps=3",
                            "--set", "data.train.size=200",
                            "--set", "train.schedule=priority",
                            "--set", "train.epochs=3",
                            "--set", "codec=none"};

// The members but this one, which is killed at this place.
std::map<std::string, Process> startWithout(const TemporaryFolder& folder, const TestServer& server,
                                            const std::string& lost, const std::string& place,
                                            const Arguments& more) {
  std::map<std::string, Process> members;
  for (const std::string name : {"a", "b", "c"}) {
    const Arguments within = name == lost ? failingAt(place) : Arguments{};
    members.emplace(name, startMember(folder, server, name, more, within));
  }
  REQUIRE(members.at(lost).wait(kPatience));
  members.erase(lost);
  return members;
}

// Whether the model of the first member that is done is that of one client with the samples of all,
// of each member for as long as it took part.
bool isReplayed(const TemporaryFolder& folder) {
  const auto result =
      askJson({"verify", "--replay", folder.path("a"), folder.path("b"), folder.path("c")});
  CHECK(result.at("values") > 0);
  CHECK(result.at("steps") == summaryOf(folder.path("b")).at("steps"));
  return result.at("equal") == true;
}

TEST_CASE("a cohort goes on without a member that stays away, with the bits of a replay") {
  const Arguments dropout = {"--set", "model={name: mlp, width: 16, depth: 3, dropout: 0.3}"};
  const Arguments norms = {
      "--set", "data.shape=[1, 16, 16]", "--set", "model={name: small_cnn, width: 4}",
      "--set", "train.staleness=1",      "--set", "train.optimizer={name: adam}"};
  // The first member has made the decisions until then.
  for (const std::string lost : {"a", "c"}) {
    for (const auto& [place, more] :
         std::map<std::string, Arguments>{{"committed:1:kill", dropout},
                                          {"checkpoint-state:2:kill", norms},
                                          {"commit:3:kill", dropout}}) {
      CAPTURE(lost, place);
      const TemporaryFolder folder;
      const TestServer server(folder);
      const auto members = startWithout(folder, server, lost, place, with(kLeaving, more));
      checkDone(members);
      const std::string other = lost == "a" ? "c" : "a";
      checkSameModel(folder.path("b"), folder.path(other));
      const auto attendance = summaryOf(folder.path("b")).at("cohort").at("attendance");
      REQUIRE(attendance.size() == 2);
      CHECK(attendance.at(1).at("first_step").get<int>() % 3 == 1);
      CHECK(attendance.at(1).at("present") ==
            (lost == "a" ? nlohmann::json::array({1, 2}) : nlohmann::json::array({0, 1})));
      CHECK_THAT(members.at("b").errors(), Contains("the cohort goes on without " + lost));
      CHECK(isReplayed(folder));
    }
  }
}

TEST_CASE("codecs with state give the same bits each time that a cohort goes on without a member") {
  const Arguments ofCodecs(kSaving.end() - 2, kSaving.end());
  const TemporaryFolder one, two;
  for (const TemporaryFolder* const folder : {&one, &two}) {
    RestartableServer server(*folder);
    const auto members =
        startWithout(*folder, server.server(), "c", "committed:2:kill", with(kLeaving, ofCodecs));
    if (folder == &two) {
      waitForText(members.at("a"), "goes on without c");
      server.kill();
      server.start();
    }
    checkDone(members);
  }
  checkSameModel(one.path("a"), two.path("a"));
  checkSameModel(one.path("a"), two.path("b"));
}

// The step of the member's newest commit.
std::uint64_t newestCommit(const std::string& run) {
  const std::string path = run + "/checkpoints/commits.json";
  if (!fs::exists(path)) return 0;
  const auto commits = nlohmann::json::parse(readFile(path), nullptr, false);
  return commits.empty() || commits.is_discarded() ? 0
                                                   : commits.at(0).at("step").get<std::uint64_t>();
}

// Starts this member, by this function, when the two others have checkpoints that it lacks; b is
// stopped meanwhile, so that the run does not end before.
void addWhileInProgress(const TemporaryFolder& folder, std::map<std::string, Process>& members,
                        const std::string& added, const std::function<Process()>& start) {
  const std::string other = added == "a" ? "c" : "a";
  while (std::min(newestCommit(folder.path(other)), newestCommit(folder.path("b"))) <= 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  members.at("b").signal(SIGSTOP);
  members.emplace(added, start());
  waitForText(members.at(added), "waiting for the next checkpoint of the cohort");
  waitForText(members.at(other), added + " joins the cohort: making a checkpoint");
  members.at("b").signal(SIGCONT);
}

void checkAttendance(const TemporaryFolder& folder, const nlohmann::json& present) {
  const auto attendance = summaryOf(folder.path("a")).at("cohort").at("attendance");
  nlohmann::json was;
  for (const auto& each : attendance) was.push_back(each.at("present"));
  CHECK(was == present);
  for (const std::string name : {"b", "c"}) {
    CHECK(summaryOf(folder.path(name)).at("cohort").at("attendance") == attendance);
  }
}

// Long enough for all others to connect again, before they go on without one.
const Arguments kLong = {"--set", "train.epochs=12", "--set", "cohort.wait_seconds=2"};

TEST_CASE("a member that comes back takes part from the next checkpoint on") {
  const Arguments dropout = {"--set", "model={name: mlp, width: 16, depth: 3, dropout: 0.3}"};
  const Arguments norms = {
      "--set", "data.shape=[1, 16, 16]", "--set", "model={name: small_cnn, width: 4}",
      "--set", "train.staleness=1",      "--set", "train.optimizer={name: adam}",
      "--set", "train.ema=0.9"};
  const Arguments codecs(kSaving.end() - 2, kSaving.end());
  using Case = std::pair<std::string, Arguments>;
  for (const auto& [lost, more] :
       {Case("a", dropout), Case("c", dropout), Case("a", norms), Case("c", codecs)}) {
    CAPTURE(lost, more);
    const TemporaryFolder folder;
    const TestServer server(folder);
    auto members =
        startWithout(folder, server, lost, "committed:1:kill", with(with(kLeaving, kLong), more));
    waitForText(members.at("b"), "goes on without " + lost);
    const auto comesBack = [&] { return startResume(folder.path(lost)); };
    addWhileInProgress(folder, members, lost, comesBack);
    checkDone(members);
    INFO(members.at("b").errors());
    for (const std::string name : {"b", "c"}) {
      checkSameModel(folder.path("a"), folder.path(name));
    }
    const nlohmann::json without = lost == "a" ? nlohmann::json{1, 2} : nlohmann::json{0, 1};
    checkAttendance(folder, {{0, 1, 2}, without, {0, 1, 2}});
    if (more != codecs) CHECK(isReplayed(folder));
  }
}

TEST_CASE("a server that is killed while the first member joins still has a checkpoint of all") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  // Long enough for all to connect to the server that is started again.
  auto members =
      startWithout(folder, server.server(), "a", "committed:1:kill",
                   with(kLeaving, {"--set", "train.epochs=12", "--set", "cohort.wait_seconds=5"}));
  while (newestCommit(folder.path("b")) <= newestCommit(folder.path("a"))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // The first member is the first to be back, so that it is there when the others continue.
  for (auto& [name, member] : members) member.signal(SIGSTOP);
  server.kill();
  server.start(failingAt("checkpoint-state:1:kill"));
  members.emplace("a", startResume(folder.path("a")));
  waitForText(members.at("a"), "waiting for other members");
  for (auto& [name, member] : members) member.signal(SIGCONT);
  REQUIRE(server.server().process().wait(kPatience));
  CHECK_FALSE(fs::exists(folder.path("b/summary.json")));
  server.start();
  checkDone(members);
  for (const std::string name : {"b", "c"}) checkSameModel(folder.path("a"), folder.path(name));
  checkAttendance(folder, {{0, 1, 2}, {1, 2}, {0, 1, 2}});
  CHECK(isReplayed(folder));
}

TEST_CASE("a run begins with some members, and a new one joins it") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments many = with(with(kLeaving, kLong), {"--set", "cohort.begin_members=2"});
  std::map<std::string, Process> members;
  for (const std::string name : {"a", "b"}) {
    members.emplace(name, startMember(folder, server, name, many));
  }
  waitForText(members.at("a"), "begins without c");
  addWhileInProgress(folder, members, "c", [&] { return startMember(folder, server, "c", many); });
  checkDone(members);
  for (const std::string name : {"b", "c"}) checkSameModel(folder.path("a"), folder.path(name));
  checkAttendance(folder, {{0, 1}, {0, 1, 2}});
  CHECK(isReplayed(folder));
}

TEST_CASE("a member that has lost its run folder joins again") {
  for (const std::string lost : {"a", "c"}) {
    CAPTURE(lost);
    const TemporaryFolder folder;
    const TestServer server(folder);
    const Arguments many = with(with(kLeaving, kLong), {"--set", "cohort.wait_seconds=600"});
    auto members = startMembers(folder, server, many);
    while (!fs::exists(folder.path("b/checkpoints/commits.json"))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    members.at(lost).signal(SIGKILL);
    REQUIRE(members.at(lost).wait(kPatience));
    members.erase(lost);
    fs::remove_all(folder.path(lost));
    members.emplace(lost, startMember(folder, server, lost, many));
    checkDone(members);
    for (const std::string name : {"b", "c"}) checkSameModel(folder.path("a"), folder.path(name));
    checkAttendance(folder, {{0, 1, 2}});
    CHECK(isReplayed(folder));
  }
}

TEST_CASE("a member that comes back with other data is refused, and the others go on") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments many = with(kLeaving, {"--set", "train.epochs=900"});
  auto members = startWithout(folder, server, "c", "committed:1:kill", many);
  for (const auto& [name, member] : members) waitForText(member, "goes on without c");
  fs::remove_all(folder.path("c"));
  const Process c = startMember(folder, server, "c", with(many, {"--set", "data.train.size=33"}));
  const Ended ended = finish(c);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("c has 33 training samples, but had 200 before"));
  for (const auto& [name, member] : members) {
    CHECK_THAT(member.errors(), !Contains("c joins the cohort"));
  }
}

TEST_CASE("doctor compares a member with those that are connected") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const auto admission = [&](const Arguments& more) {
    const Ended ended =
        finish(startClient("doctor", folder.path("b"),
                           with({"--json", "--seconds", "0.2", "--server", server.address(),
                                 "--set", "cohort.id=abc", "--set", "cohort.members=[a, b, c]",
                                 "--set", "cohort.member=b", "--set", "train.epochs=2"},
                                more)));
    const auto report = nlohmann::json::parse(ended.output);
    for (const auto& check : report.at("checks")) {
      if (check.at("check") == "admission") return check;
    }
    FAIL(ended.output);
    return nlohmann::json();
  };
  const auto alone = admission({});
  CHECK(alone.at("finding") == "ok");
  CHECK_THAT(alone.at("sentence"), Contains("no other member of the cohort abc is connected"));
  const Process a = startMember(folder, server, "a");
  waitForText(a, "waiting for other members");
  const auto fitting = admission({});
  CHECK(fitting.at("finding") == "ok");
  CHECK_THAT(fitting.at("sentence"), Contains("b fits the cohort abc (compared with a)"));
  const auto different = admission({"--set", "train.learning_rate.peak=0.5"});
  CHECK(different.at("finding") == "FAIL");
  CHECK_THAT(different.at("sentence"), Contains("train.learning_rate.peak of b is 0.5"));
  CHECK_THAT(admission({"--set", "model.width=8"}).at("sentence"), Contains("of b"));
}

TEST_CASE("a replay needs the runs of all members, in their order, without codecs") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  checkDone(startMembers(folder, server, with(kLeaving, {"--set", "train.epochs=1"})));
  CHECK(isReplayed(folder));
  const auto refused = [&](const Arguments& runs) {
    const Ended ended = ask(with({"verify", "--replay"}, runs));
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains("bad-replay"));
    return ended.errors;
  };
  const std::string a = folder.path("a"), b = folder.path("b"), c = folder.path("c");
  CHECK_THAT(refused({a}), Contains("1 folder is given"));
  CHECK_THAT(refused({a, c, b}), Contains("is the run of c, not of b"));
  CHECK_THAT(refused({folder.path("none")}), Contains("there is no"));
  const TemporaryFolder other;
  REQUIRE(runClient("train", other.path("run"), {"--server", server.address()}).code == 0);
  CHECK_THAT(refused({other.path("run")}), Contains("codec"));
  CHECK_THAT(refused({other.path("run"), a}), Contains("codec"));
}

TEST_CASE("a run of one client is replayed too") {
  const TemporaryFolder folder;
  REQUIRE(runClient("train", folder.path("run"), {"--set", "codec=none"}).code == 0);
  CHECK(askJson({"verify", "--replay", folder.path("run")}).at("equal") == true);
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
