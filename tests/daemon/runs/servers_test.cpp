// Several servers, each of which computes one of the bodies between the client's head and tail.
#include <catch2/catch.hpp>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"
#include "tests/support/network/certificates.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// The model has the blocks flatten, fc1, relu1, fc2, …, relu4, fc_out.
std::string deepModelWith(const std::string& cuts) {
  return "model={name: mlp, width: 16, depth: 4, dropout: 0.2, cuts: " + cuts + "}";
}

// Two bodies. Everything that has a state is included: dropout, Adam, and codecs with states.
const Arguments kDeepTwoBodies = {
    "--set", deepModelWith("[2, 4, 8]"), "--set", "train.optimizer={name: adam}",
    "--set", "codec=power:rank=2",       "--set", "train.epochs=20",
    "--set", "checkpoint.every_steps=3"};

std::string runIdOf(const std::string& run) {
  return nlohmann::json::parse(readFile(run + "/run.json")).at("run");
}

// Two servers, and an undisturbed run with both in the folder "undisturbed". `serverOptions` and
// `clientOptions`: further arguments of the servers and of all clients.
struct ServerPair {
  explicit ServerPair(const Arguments& serverOptions = {}, const Arguments& clientOptions = {})
      : first(folder, serverOptions),
        second(folder, serverOptions, "second"),
        arguments(with(with(kDeepTwoBodies, clientOptions),
                       {"--server", first.address() + "," + second.address()})) {
    REQUIRE(runClient("train", folder.path("undisturbed"), arguments).code == 0);
  }

  const TemporaryFolder folder;
  RestartableServer first, second;
  const Arguments arguments;
};

TEST_CASE("split and whole model are bit-identical with 2, 3 and 4 servers") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  int number = 0;
  struct Case {
    const char* cuts;
    const char* schedule;
    const char* microBatches;
  };
  // engine_test has all combinations.
  for (const Case& each :
       {Case{"[2, 4, 8]", "priority", "1"}, Case{"[2, 4, 8]", "gpipe", "4"},
        Case{"[1, 3, 6, 8]", "1f1b", "4"}, Case{"[1, 3, 6, 8]", "zb", "1"},
        Case{"[1, 3, 5, 7, 9]", "priority", "4"}, Case{"[1, 3, 5, 7, 9]", "1f1b", "1"},
        Case{"[1, 3, 5, 7, 9]", "zb", "4"}}) {
    CAPTURE(each.cuts, each.schedule, each.microBatches);
    const std::string cuts = each.cuts;
    std::string addresses = server.address();
    for (const char c : cuts) addresses += c == ',' ? "," + server.address() : "";
    addresses.resize(addresses.rfind(','));  // one server too few for the cuts
    const auto result = verifySteps(folder.path("run" + std::to_string(++number)),
                                    {"--server", addresses, "--set", deepModelWith(cuts), "--set",
                                     std::string("train.schedule=") + each.schedule, "--set",
                                     std::string("train.micro_batches=") + each.microBatches});
    CHECK(result.at("equal") == true);
    CHECK(result.at("compared").at("gradients/body").at("values") > 0);
  }
}

// Two tensors cross the cut after `block`. In the second case, the first body trains nothing before
// it, so no gradients cross its first cut.
TEST_CASE("split and whole are bit-identical with an exported model and several servers") {
  const TemporaryFolder folder;
  const std::string file = CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2";
  int number = 0;
  const char* const few = "[conv, norm, pool]";
  const char* const many = "[norm, block, pool, dropout]";
  struct Case {
    const char* cuts;
    const char* freeze;
    const char* schedule;
  };
  for (const Case& each :
       {Case{few, "[]", "priority"}, Case{few, "[\"conv.*\"]", "1f1b"},
        Case{few, "[\"*\", \"!classifier*\"]", "zb"}, Case{many, "[]", "zb"},
        Case{many, "[\"conv.*\"]", "priority"}, Case{many, "[\"*\", \"!classifier*\"]", "1f1b"}}) {
    CAPTURE(each.cuts, each.freeze, each.schedule);
    const auto result = verifySteps(
        folder.path("run" + std::to_string(++number)),
        {"--set", "model={name: graph, file: " + file + ", cuts: " + each.cuts + "}", "--set",
         std::string("train.freeze=") + each.freeze, "--set",
         std::string("train.schedule=") + each.schedule, "--set", "train.micro_batches=8"});
    CHECK(result.at("equal") == true);
  }
}

TEST_CASE("without --server, the client starts a server for each body") {
  const TemporaryFolder folder;
  const auto result = verifySteps(folder.path("run"), {"--set", deepModelWith("[1, 3, 6, 8]")});
  CHECK(result.at("equal") == true);
  CHECK(std::filesystem::exists(folder.path("run") + "/server-3/local"));
  // Steps that overlap at all of them.
  for (const std::string schedule : {"priority", "1f1b", "zb"}) {
    CAPTURE(schedule);
    CHECK(verifySteps(folder.path(schedule),
                      {"--set", deepModelWith("[1, 3, 6, 8]"), "--set",
                       "train.schedule=" + schedule, "--set", "train.staleness=2"})
              .at("equal") == true);
  }
}

TEST_CASE("codecs of changes give the same weights with every schedule and with several servers") {
  const TemporaryFolder folder;
  const TestServer first(folder), second(folder, {}, "second");
  std::string expected;
  for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
    CAPTURE(schedule);
    const std::string run = folder.path(schedule);
    const Ended ended =
        runClient("train", run,
                  {"--set", deepModelWith("[2, 4, 8]"), "--set", "train.schedule=" + schedule,
                   "--set", "train.epochs=4", "--set",
                   "codec={activation/0: delta(block:bits=4), activation/1: delta(block:bits=2), "
                   "activation/2: rans(delta(block:bits=4)), gradient/0: block:bits=4, gradient/1: "
                   "block:bits=2, gradient/2: topk:ratio=0.2}",
                   "--set", "servers=[\"" + first.address() + "\", \"" + second.address() + "\"]"});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    const std::string weights = readTensors(run + "/model.safetensors");
    if (expected.empty()) expected = weights;
    CHECK((weights == expected));
  }
}

TEST_CASE("the client passes tensors on between servers without encoding them again") {
  const TemporaryFolder folder;
  const TestServer first(folder), second(folder, {}, "second");
  const std::string run = folder.path("run");
  const Ended ended =
      runClient("train", run,
                {"--set", "model={name: mlp, width: 256, depth: 4, cuts: [2, 4, 8]}", "--set",
                 "codec=block:bits=4", "--set",
                 "servers=[\"" + first.address() + "\", \"" + second.address() + "\"]"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto rows = readCsv(run + "/transfers.csv");
  for (const std::string flow : {"activation/1", "gradient/1"}) {
    CAPTURE(flow);
    const CsvRow down = {{"flow", flow}, {"role", "recv"}}, up = {{"flow", flow}, {"role", "send"}};
    const CsvRow direct = {{"flow", "activation/0"}, {"role", "send"}};
    CHECK(sumOf(rows, "raw_bytes", down) == sumOf(rows, "raw_bytes", up));
    CHECK(4 * sumOf(rows, "wire_bytes", up) < sumOf(rows, "raw_bytes", up));
    CHECK(sumOf(rows, "encode_seconds", up) == 0);
    CHECK(sumOf(rows, "decode_seconds", up) > 0);  // on the second of the two servers
    CHECK(sumOf(rows, "encode_seconds", down) > 0);
    CHECK(sumOf(rows, "decode_seconds", down) == 0);
    CHECK(sumOf(rows, "encode_seconds", direct) > 0);
  }
}

TEST_CASE("if a server is killed, the run continues and ends with the same weights") {
  ServerPair servers;
  auto& [folder, first, second, arguments] = servers;
  int number = 0;
  for (RestartableServer* const killed : {&first, &second}) {
    for (const std::string place :
         {"batch:17:kill", "snapshot:2:kill", "checkpoint-written:2:kill"}) {
      CAPTURE(killed == &first, place);
      const std::string path = folder.path("run" + std::to_string(++number));
      trainThroughKills(*killed, {place}, path, arguments);
      checkSameModel(folder.path("undisturbed"), path);
    }
  }
}

TEST_CASE("a killed client resumes with all servers") {
  ServerPair servers;
  auto& [folder, first, second, arguments] = servers;
  const std::string run = folder.path("run");
  const Process client = startClient("train", run, arguments, failingAt("committed:4:kill"));
  REQUIRE(client.wait(kPatience));
  second.kill();
  second.start();
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  checkSameModel(folder.path("undisturbed"), run);
}

TEST_CASE(
    "if the newest checkpoint is damaged on one server, the run resumes from the one before") {
  ServerPair servers;
  auto& [folder, first, second, arguments] = servers;
  int number = 0;
  for (RestartableServer* const damaged : {&first, &second}) {
    const std::string run = folder.path("run" + std::to_string(++number));
    const Process client = startClient("train", run, arguments, failingAt("committed:4:kill"));
    REQUIRE(client.wait(kPatience));
    std::string newest;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             folder.path(damaged == &first ? "store" : "second"))) {
      const std::string path = entry.path().string();
      const bool isOfRun = path.find(runIdOf(run)) != std::string::npos;
      const bool isCheckpoint = path.find("/checkpoints/") != std::string::npos;
      if (isOfRun && isCheckpoint && path.ends_with(".safetensors"))
        newest = std::max(newest, path);
    }
    REQUIRE_FALSE(newest.empty());
    std::filesystem::remove(newest);
    const Ended ended = resume(run);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    checkSameModel(folder.path("undisturbed"), run);
  }
}

TEST_CASE("a broken connection to one of several servers is replaced") {
  ServerPair servers;
  auto& [folder, first, second, arguments] = servers;
  for (const bool isFirst : {true, false}) {
    CAPTURE(isFirst);
    Relay relay("127.0.0.1", (isFirst ? first : second).server().port());
    const RepeatedCuts cuts(relay, isFirst ? Relay::Way::up : Relay::Way::down, 30'011);
    const std::string through = addressAt(relay.port());
    const std::string addresses =
        isFirst ? through + "," + second.address() : first.address() + "," + through;
    const std::string run = folder.path(isFirst ? "first" : "later");
    const Ended ended = runClient("train", run, with(kDeepTwoBodies, {"--server", addresses}));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.errors, Contains("reconnected to " + through));
    CHECK(nlohmann::json::parse(readFile(run + "/summary.json")).at("steps_redone") == 0);
    checkSameModel(folder.path("undisturbed"), run);
  }
}

TEST_CASE("within TLS, no step is lost if one of several servers is restarted") {
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server"), alice = certificates.path("alice");
  authority.writeServer(own);
  authority.write(alice, "client", clientRequest());
  // There are no periodic checkpoints.
  ServerPair servers(
      {"--set", "tls.enabled=true", "--set", "tls.folder=" + own},
      {"--tls", alice, "--set", "checkpoint.every_steps=100000", "--set", "train.epochs=60"});
  auto& [folder, first, second, arguments] = servers;
  for (RestartableServer* const restarted : {&first, &second}) {
    CAPTURE(restarted == &first);
    const std::string run = folder.path(restarted == &first ? "first" : "later");
    const Process client = startClient("train", run, arguments);
    waitForSteps(run);
    restartWithoutLoss(*restarted, client, run);
    checkSameModel(folder.path("undisturbed"), run);
  }
}

TEST_CASE("Ctrl-C at the client ends the run on all servers") {
  ServerPair servers;
  auto& [folder, first, second, arguments] = servers;
  const std::string run = folder.path("run");
  Process client = startClient("train", run, with(arguments, {"--set", "train.epochs=1000"}));
  waitForSteps(run);
  client.signal(SIGINT);
  const Ended interrupted = finish(client);
  INFO(interrupted.errors);
  CHECK(interrupted.code == 1);
  CHECK_THAT(interrupted.errors, Contains("train --resume " + run));
  for (RestartableServer* const server : {&first, &second}) {
    CHECK(server->server().process().waitForOutput("the client ended it (interrupted)", kPatience));
  }
}

TEST_CASE("if one server refuses the run, the others do not keep it") {
  const TemporaryFolder folder;
  const TestServer first(folder), second(folder, {"--set", "limits.memory_mib=1"}, "second");
  const Ended ended =
      runClient("train", folder.path("run"),
                with(kDeepTwoBodies, {"--server", first.address() + "," + second.address(), "--set",
                                      "connect.retry_seconds=0"}));
  CHECK(ended.code != 0);
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
  // A parked run would keep its session.
  const auto runs = first.runFolders();
  REQUIRE(runs.size() == 1);
  CHECK_THAT(readFile(runs[0] + "/log.txt"), Contains("the client ended it (failed)"));
}

TEST_CASE("what does not support several servers refuses them") {
  const TemporaryFolder folder;
  const Ended ended =
      ask({"profile", "--config", configFile("synthetic.yaml"), "--set", "model.cuts=[2, 3, 5]",
           "--set", "insert=[{cut: 0, kind: linear, rank: 8}]", "--output",
           folder.path("profile.json")});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("[several-servers]") && Contains("learned inserts"));
}

TEST_CASE("a run with two servers has a bound and advice, and the link to each is probed first") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Ended ended = runClient("train", folder.path("run"),
                                {"--json",
                                 "--set",
                                 deepModelWith("[2, 4, 8]"),
                                 "--server",
                                 server.address() + "," + server.address(),
                                 "--set",
                                 "train.max_steps=40",
                                 "--set",
                                 "train.epochs=20",
                                 "--set",
                                 "data.train.size=1024",
                                 "--set",
                                 "train.batch=64",
                                 "--set",
                                 "codec=none",
                                 "--set",
                                 "model.width=512",
                                 "--probe",
                                 "--set",
                                 "probe.seconds=0.2"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  REQUIRE(summary.contains("bound"));
  CHECK(summary.at("bound").at("over_bound").get<double>() >= 1);
  CHECK(summary.at("bound").at("rate_up").get<double>() > 0);
  CHECK_FALSE(summary.at("bound").at("advice").at("sentence").get<std::string>().empty());
  CHECK(summary.at("probe").at("servers").size() == 2);
  CHECK_THAT(summary.at("probe").at("sentence").get<std::string>(),
             Contains("server 1: ") && Contains("; server 2: "));
  std::map<std::string, int> rows;  // by run id
  const std::string run = summary.at("run");
  for (const CsvRow& row : readCsv(folder.path("run") + "/probe.csv")) ++rows[row.at("run")];
  CHECK(rows.size() == 2);
  CHECK(rows[run] > 0);
  CHECK(rows[run + "-2"] > 0);
}

TEST_CASE("doctor checks all servers, and whether each would admit its body") {
  const TemporaryFolder folder;
  const TestServer first(folder), second(folder, {"--set", "limits.memory_mib=1"}, "second");
  const Ended ended = ask({"doctor", "--json", "--seconds", "0.2", "--config",
                           configFile("synthetic.yaml"), "--set", deepModelWith("[2, 4, 8]"),
                           "--server", first.address() + "," + second.address()});
  INFO(ended.output << ended.errors);
  CHECK(ended.code == 1);
  std::map<std::string, std::string> findings;
  const auto report = nlohmann::json::parse(ended.output);
  for (const auto& check : report.at("checks")) {
    if (!check.at("figures").contains("server")) continue;
    findings[check.at("check").get<std::string>() + " " +
             std::to_string(check.at("figures").at("server").get<int>())] = check.at("finding");
  }
  for (const std::string number : {" 1", " 2"}) {
    for (const std::string check : {"reach", "server"}) {
      CAPTURE(check + number);
      CHECK(findings[check + number] == "ok");
    }
    CHECK(findings["link" + number] != "FAIL");  // "warn" on a busy machine
  }
  CHECK(findings["admission 1"] == "ok");
  CHECK(findings["admission 2"] == "FAIL");
}

TEST_CASE("a resumed run keeps its inner cuts and codecs") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const std::string run = folder.path("run");
  const Process client = startClient(
      "train", run, with(kDeepTwoBodies, {"--server", server.address() + "," + server.address()}),
      failingAt("committed:4:kill"));
  REQUIRE(client.wait(kPatience));
  for (const std::string& changed : {deepModelWith("[2, 5, 8]"), deepModelWith("[2, 4, 6, 8]"),
                                     std::string("codec={activation/1: none}")}) {
    CAPTURE(changed);
    const Ended ended = resume(run, {"--set", changed});
    CHECK(ended.code == 2);
  }
  CHECK(resume(run).code == 0);
}

TEST_CASE("a run with several servers needs one address per body") {
  const TemporaryFolder folder;
  const Ended tooFew =
      runClient("verify", folder.path("run"),
                {"--set", deepModelWith("[2, 4, 8]"), "--server", "127.0.0.1:4800"});
  CHECK(tooFew.code == 2);
  CHECK_THAT(tooFew.errors, Contains("[bad-servers]"));
  const Ended disordered =
      runClient("verify", folder.path("run"), {"--set", deepModelWith("[2, 8, 4]")});
  CHECK(disordered.code == 2);
  CHECK_THAT(disordered.errors, Contains("[bad-cuts]"));
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

}  // namespace
}  // namespace cleave::test
