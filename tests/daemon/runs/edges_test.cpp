// Direct links between neighbouring servers (edges), instead of through the client.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// The model has the blocks flatten, fc1, relu1, fc2, …, relu4, fc_out.
std::string modelWith(const std::string& cuts) {
  return "model={name: mlp, width: 16, depth: 4, dropout: 0.2, cuts: " + cuts + "}";
}

const Arguments kDirect = {"--set", "connect.direct=true"};
// Two bodies. Everything that has a state is included: dropout, Adam, and codecs with states.
const Arguments kTwoBodies = {
    "--set",
    modelWith("[2, 4, 8]"),
    "--set",
    "train.optimizer={name: adam}",
    "--set",
    "train.epochs=20",
    "--set",
    "checkpoint.every_steps=3",
    "--set",
    "eval.every=4",
    "--set",
    "codec={activation/0: power:rank=2, activation/1: power:rank=2, activation/2: power:rank=2, "
    "gradient/2: block:bits=4, gradient/1: topk:ratio=0.2, gradient/0: block:bits=8}"};
const Arguments kAccepting = {"--set", "edges.accept=true"};

Arguments mayDial(const std::string& address) {
  return {"--set", "edges.allow=[\"" + address + "\"]"};
}

// Two servers, the first of which may connect to the second one.
struct TwoServers {
  TwoServers() : second(folder, kAccepting, "second"), first(folder, mayDial(second.address())) {}

  Arguments server() const { return {"--server", first.address() + "," + second.address()}; }
  const TemporaryFolder folder;
  RestartableServer second, first;
};

nlohmann::json verify(const std::string& run, const Arguments& more) {
  return verifySteps(run, with(kDirect, more));
}

// Trains with direct links, and fails the test if the run fails. Returns the client's log.
std::string train(const std::string& run, const Arguments& more) {
  const Ended ended = runClient("train", run, with(with(kTwoBodies, kDirect), more));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return ended.errors;
}

TEST_CASE("split and whole are bit-identical with direct links between 2, 3 and 4 servers") {
  const TemporaryFolder folder;
  int number = 0;
  struct Case {
    const char* cuts;
    const char* schedule;
    const char* staleness;
  };
  // engine_test has all combinations.
  for (const Case& each :
       {Case{"[2, 4, 8]", "priority", "2"}, Case{"[2, 4, 8]", "gpipe", "0"},
        Case{"[1, 3, 6, 8]", "1f1b", "2"}, Case{"[1, 3, 6, 8]", "zb", "0"},
        Case{"[1, 3, 5, 7, 9]", "priority", "0"}, Case{"[1, 3, 5, 7, 9]", "1f1b", "0"},
        Case{"[1, 3, 5, 7, 9]", "zb", "2"}}) {
    CAPTURE(each.cuts, each.schedule, each.staleness);
    const auto result = verify(
        folder.path("run" + std::to_string(++number)),
        {"--set", modelWith(each.cuts), "--set", std::string("train.schedule=") + each.schedule,
         "--set", std::string("train.staleness=") + each.staleness});
    CHECK(result.at("equal") == true);
    CHECK(result.at("compared").at("gradients/body").at("values") > 0);
  }
}

// Two tensors cross the cut after `block`. In the last case, no gradients cross the first cuts.
TEST_CASE("direct links carry all tensors of a cut, and flows without gradients") {
  const TemporaryFolder folder;
  const std::string file = CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2";
  int number = 0;
  for (const std::string freeze : {"[]", "[\"conv.*\"]", "[\"*\", \"!classifier*\"]"}) {
    for (const std::string inFlight : {"1", "8"}) {
      CAPTURE(freeze, inFlight);
      const auto result = verify(
          folder.path("run" + std::to_string(++number)),
          {"--set", "model={name: graph, file: " + file + ", cuts: [norm, block, pool, dropout]}",
           "--set", "train.freeze=" + freeze, "--set", "train.micro_batches=8", "--set",
           "train.in_flight=" + inFlight});
      CHECK(result.at("equal") == true);
    }
  }
}

TEST_CASE("direct links give the same weights as the client's, and each side records its own") {
  TwoServers servers;
  auto& [folder, second, first] = servers;
  const std::string hub = folder.path("hub"), direct = folder.path("direct");
  REQUIRE(runClient("train", hub, with(kTwoBodies, servers.server())).code == 0);
  train(direct, servers.server());
  checkSameModel(hub, direct);
  const auto ofClient = readCsv(direct + "/transfers.csv");
  for (const CsvRow& row : ofClient) {
    CHECK(row.at("flow") != "activation/1");
    CHECK(row.at("flow") != "gradient/1");
  }
  const std::string id = nlohmann::json::parse(readFile(direct + "/run.json")).at("run");
  first.server().stop();
  second.server().stop();
  const auto ofFirst = readCsv(folder.path("store") + "/local/" + id + "/transfers.csv");
  const auto ofSecond = readCsv(folder.path("second") + "/local/" + id + "-2/transfers.csv");
  for (const std::string flow : {"activation/1", "gradient/1"}) {
    CAPTURE(flow);
    const bool isActivation = flow == "activation/1";
    const CsvRow sent = {{"flow", flow}, {"role", "send"}},
                 received = {{"flow", flow}, {"role", "recv"}};
    const auto& sender = isActivation ? ofFirst : ofSecond;
    const auto& receiver = isActivation ? ofSecond : ofFirst;
    CHECK(sumOf(sender, "wire_bytes", sent) > 0);
    CHECK(sumOf(sender, "wire_bytes", sent) == sumOf(receiver, "wire_bytes", received));
    CHECK(sumOf(sender, "raw_bytes", received) == 0);
  }
  const auto summary = nlohmann::json::parse(readFile(direct + "/summary.json"));
  const auto ofHub = nlohmann::json::parse(readFile(hub + "/summary.json"));
  CHECK(summary.at("bytes_up").get<double>() < ofHub.at("bytes_up").get<double>());
  CHECK(summary.at("bytes_down").get<double>() < ofHub.at("bytes_down").get<double>());
}

TEST_CASE("a run with direct links has a bound, and its step can be simulated") {
  const TemporaryFolder folder;
  const Arguments model = {"--set", "model={name: mlp, width: 512, depth: 4, cuts: [2, 4, 8]}",
                           "--set", "train.batch=64",
                           "--set", "codec=none"};
  const Ended ended =
      runClient("train", folder.path("run"),
                with(with(kDirect, model), {"--json", "--set", "train.max_steps=40", "--set",
                                            "train.epochs=20", "--set", "data.train.size=1024"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  REQUIRE(summary.contains("bound"));
  CHECK(summary.at("bound").at("over_bound").get<double>() >= 1);
  // Tensors cross a slow direct link in half the time of the client's links.
  const auto simulated = [&](const Arguments& more) {
    const Arguments link = {"--rate", "10Mbit/s", "--latency", "0ms", "--steps", "3"};
    const auto result = askJson(with(
        with({"simulate", "--config", configFile("synthetic.yaml")}, with(model, link)), more));
    return result.at("best").at("seconds").get<double>();
  };
  const double hub = simulated({});
  CHECK(simulated(kDirect) < 0.8 * hub);
  CHECK(simulated(with(kDirect, {"--edge-rate", "1Mbit/s"})) > hub);
}

// No tensors cross the client's link to the second server. Without them, only 10 short frames per
// second are allowed.
TEST_CASE("hundreds of short steps and evaluations with three servers stay within the limits") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("run"),
                with(kDirect, {"--set", "model={name: mlp, width: 4, depth: 4, cuts: [1, 3, 6, 8]}",
                               "--set", "train.batch=4", "--set", "train.micro_batches=1", "--set",
                               "codec=none", "--set", "train.max_steps=500", "--set",
                               "train.epochs=50", "--set", "data.train.size=2000", "--set",
                               "data.test.size=1000", "--set", "eval.batch=2"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
}

// The client's replies to the second server are late: the next micro-batch reaches that server over
// the direct link before them.
TEST_CASE("the acknowledgements of the client may be later than the next micro-batches") {
  const TemporaryFolder folder;
  const TestServer second(folder, kAccepting, "second");
  const TestServer first(folder, mayDial(second.address()), "first");
  Relay relay("127.0.0.1", second.port());
  relay.delay(std::chrono::milliseconds(10));
  const Ended ended =
      runClient("train", folder.path("run"),
                with(kDirect, {"--set", modelWith("[2, 4, 8]"), "--set", "train.in_flight=1",
                               "--set", "train.max_steps=3", "--set", "eval.every=1", "--set",
                               "data.test.size=160", "--set", "eval.batch=16", "--server",
                               first.address() + "," + addressAt(relay.port()), "--set",
                               "connect.direct_addresses=[\"" + second.address() + "\"]"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
}

TEST_CASE(
    "broken direct links, and connections of the client, are replaced without redoing a step") {
  const TemporaryFolder folder;
  const TestServer second(folder, kAccepting, "second");
  Relay relay("127.0.0.1", second.port());
  const std::string through = addressAt(relay.port());
  const TestServer first(folder, mayDial(second.address()), "first");
  TestServer relayed(folder, mayDial(through), "relayed");
  train(folder.path("undisturbed"), {"--server", first.address() + "," + second.address()});
  for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
    CAPTURE(way == Relay::Way::up);
    const RepeatedCuts cuts(relay, way, 9'011);
    const std::string run = folder.path(way == Relay::Way::up ? "up" : "down");
    train(run, {"--server", relayed.address() + "," + second.address(), "--set",
                "connect.direct_addresses=[\"" + through + "\"]"});
    checkSameModel(folder.path("undisturbed"), run);
    CHECK(nlohmann::json::parse(readFile(run + "/summary.json")).at("steps_redone") == 0);
  }
  CHECK_THAT(relayed.process().errors(), Contains("direct link to " + through + ": "));
  // The client's connections to both servers break too.
  Relay toFirst("127.0.0.1", relayed.port()), toSecond("127.0.0.1", second.port());
  const RepeatedCuts cuts(relay, Relay::Way::up, 9'011), firstCuts(toFirst, Relay::Way::up, 8'009),
      secondCuts(toSecond, Relay::Way::down, 7'013);
  const std::string run = folder.path("all");
  const std::string errors =
      train(run, {"--server", addressAt(toFirst.port()) + "," + addressAt(toSecond.port()), "--set",
                  "connect.direct_addresses=[\"" + through + "\"]"});
  for (const Relay* each : {&toFirst, &toSecond}) {
    CHECK_THAT(errors, Contains("reconnected to " + addressAt(each->port())));
  }
  CHECK(nlohmann::json::parse(readFile(run + "/summary.json")).at("steps_redone") == 0);
  checkSameModel(folder.path("undisturbed"), run);
}

TEST_CASE(
    "if a server with direct links or the client is killed, the run ends with the same weights") {
  TwoServers servers;
  auto& [folder, second, first] = servers;
  train(folder.path("undisturbed"), servers.server());
  // The servers keep the run of a killed client until it resumes, and then replace its direct link.
  const std::string ofClient = folder.path("client");
  const Process client =
      startClient("train", ofClient, with(with(kTwoBodies, kDirect), servers.server()),
                  failingAt("batch:17:kill"));
  REQUIRE(client.wait(kPatience));
  for (RestartableServer* const server : {&first, &second}) {
    CHECK(server->server().process().waitForOutput("is kept for", kPatience));
  }
  const Ended ended = resume(ofClient);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  checkSameModel(folder.path("undisturbed"), ofClient);
  int number = 0;
  for (RestartableServer* const killed : {&first, &second}) {
    for (const std::string place : {"batch:17:kill", "snapshot:2:kill"}) {
      CAPTURE(killed == &first, place);
      const std::string run = folder.path("run" + std::to_string(++number));
      trainThroughKills(*killed, {place}, run, with(with(kTwoBodies, kDirect), servers.server()));
      checkSameModel(folder.path("undisturbed"), run);
    }
  }
}

// The first server gives the second one up after a second.
TEST_CASE("if a server is away for longer than the other one waits, the run continues") {
  const TemporaryFolder folder;
  RestartableServer second(folder, kAccepting, "second");
  const TestServer first(folder,
                         with(mayDial(second.address()), {"--set", "limits.park_seconds=1"}));
  const Arguments servers = {"--server", first.address() + "," + second.address()};
  train(folder.path("undisturbed"), servers);
  second.server().stop();
  second.start(failingAt("batch:17:kill"));
  const std::string run = folder.path("run");
  const Process client = startClient("train", run, with(with(kTwoBodies, kDirect), servers));
  REQUIRE(second.server().process().wait(kPatience));
  std::this_thread::sleep_for(std::chrono::seconds(4));
  second.start();
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("the direct link to " + second.address()));
  checkSameModel(folder.path("undisturbed"), run);
}

// Waits until the server with this store serves no runs and keeps none.
void waitUntilFree(const TemporaryFolder& folder, const std::string& store) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  nlohmann::json status;
  while (std::chrono::steady_clock::now() < end) {
    const Ended ended =
        finish(Process::start({serverProgram(), "status", "--json", "--config",
                               configFile("server.yaml"), "--set", "store=" + folder.path(store)}));
    REQUIRE(ended.code == 0);
    status = nlohmann::json::parse(ended.output);
    if (status.at("sessions").empty() && status.at("memory").at("admitted_bytes") == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("the server still has a run: " << status.dump());
}

TEST_CASE("if a server with direct links restarts, or the client is interrupted, no step is lost") {
  TwoServers servers;
  auto& [folder, second, first] = servers;
  // There are no periodic checkpoints.
  const Arguments arguments =
      with(with(with(kTwoBodies, kDirect), servers.server()),
           {"--set", "checkpoint.every_steps=100000", "--set", "train.epochs=60"});
  const std::string expected = folder.path("undisturbed");
  REQUIRE(runClient("train", expected, arguments).code == 0);
  for (RestartableServer* const restarted : {&first, &second}) {
    CAPTURE(restarted == &first);
    const std::string run = folder.path(restarted == &first ? "run 1" : "run 2");
    const Process client = startClient("train", run, arguments);
    waitForSteps(run);
    restartWithoutLoss(*restarted, client, run);
    checkSameModel(expected, run);
  }
  const std::string run = folder.path("interrupted");
  Process client = startClient("train", run, arguments);
  waitForSteps(run);
  client.signal(SIGINT);
  checkError(finish(client), kFailedRun,
             {"cleave-client: error [interrupted]: ", "train --resume " + run});
  for (RestartableServer* const server : {&first, &second}) {
    CHECK(server->server().process().waitForOutput("the client ended it (interrupted)", kPatience));
  }
  waitUntilFree(folder, "store");
  waitUntilFree(folder, "second");
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(nlohmann::json::parse(readFile(run + "/summary.json")).at("steps_redone") == 0);
  checkSameModel(expected, run);
}

TEST_CASE("a run may continue without direct links, or with them") {
  TwoServers servers;
  auto& [folder, second, first] = servers;
  train(folder.path("undisturbed"), servers.server());
  for (const std::string before : {"true", "false"}) {
    CAPTURE(before);
    const std::string run = folder.path("run " + before);
    const Process client =
        startClient("train", run,
                    with(with(kTwoBodies, servers.server()), {"--set", "connect.direct=" + before}),
                    failingAt("committed:4:kill"));
    REQUIRE(client.wait(kPatience));
    const Ended ended = resume(
        run, {"--set", std::string("connect.direct=") + (before == "true" ? "false" : "true")});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    checkSameModel(folder.path("undisturbed"), run);
  }
}

// ---- Refusals ----

TEST_CASE("a server connects only to servers in its list, and accepts only if it is allowed") {
  const TemporaryFolder folder;
  const TestServer plain(folder, {}, "plain"), accepting(folder, kAccepting, "accepting");
  const TestServer dialling(folder, mayDial(plain.address()), "dialling");
  const auto verifyWith = [&](const TestServer& first, const TestServer& last) {
    return runClient("verify", folder.path("run"),
                     with(kDirect, {"--steps", "1", "--set", modelWith("[2, 4, 8]"), "--server",
                                    first.address() + "," + last.address()}));
  };
  const Ended notAllowed = verifyWith(plain, accepting);
  CHECK(notAllowed.code == 2);
  CHECK_THAT(notAllowed.errors, Contains("[edge-not-allowed]") &&
                                    Contains("edges: {allow: [\"" + accepting.address() + "\"]}"));
  const Ended notAccepted = verifyWith(dialling, plain);
  CHECK(notAccepted.code == 2);
  CHECK_THAT(notAccepted.errors,
             Contains("[edges-not-accepted]") && Contains("edges: {accept: true}"));
}

TEST_CASE("if a server cannot reach the next one, the client says which, and why") {
  const TemporaryFolder folder;
  const TestServer second(folder, kAccepting, "second");
  const std::string nobody = "127.0.0.1:9";
  const TestServer first(folder, mayDial(nobody));
  const Ended ended = runClient("train", folder.path("run"),
                                with(kDirect, {"--set", modelWith("[2, 4, 8]"), "--server",
                                               first.address() + "," + second.address(), "--set",
                                               "connect.direct_addresses=[\"" + nobody + "\"]"}));
  INFO(ended.errors);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("the direct link to " + nobody) && Contains("refused") &&
                               Contains("[edge-failed]") &&
                               Contains("from the server of blocks 2 to 3"));
}

TEST_CASE("codecs that keep samples, and wrong numbers of addresses, are refused") {
  const TemporaryFolder folder;
  for (const std::string flow : {"activation/1", "activation/2"}) {
    const Ended codec = runClient("train", folder.path("run"),
                                  with(kDirect, {"--set", modelWith("[2, 4, 8]"), "--set",
                                                 "codec={" + flow + ": delta(block:bits=4)}"}));
    CHECK(codec.code == 2);
    CHECK_THAT(codec.errors, Contains("[bad-codec-spec]") && Contains(flow));
  }
  const Ended addresses =
      runClient("train", folder.path("run"),
                with(kDirect, {"--set", modelWith("[2, 4, 8]"), "--set",
                               "connect.direct_addresses=[\"127.0.0.1:1\", \"127.0.0.1:2\"]"}));
  CHECK(addresses.code == 2);
  CHECK_THAT(addresses.errors, Contains("[bad-servers]"));
}

TEST_CASE("without TLS, a server may connect to loopback addresses only") {
  const Ended ended = finish(Process::start({serverProgram(), "serve", "--set", "listen.port=0",
                                             "--set", "edges.allow=[\"10.0.0.5:4800\"]"}));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("[unsafe-edge]"));
}

// ---- TLS ----

TEST_CASE(
    "within TLS, both servers of a direct link need certificates that the other one accepts") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority, other;
  const std::string own = certificates.path("server"), alice = certificates.path("alice"),
                    edge = certificates.path("edge"), both = certificates.path("both"),
                    stranger = certificates.path("stranger"), misled = certificates.path("misled");
  authority.writeServer(own, serverRequest("URI:cleave:server,IP:127.0.0.1"));
  authority.write(alice, "client", clientRequest());
  authority.write(edge, "client", clientRequest("server-1"));
  authority.writeServer(both);
  authority.write(both, "client", clientRequest("server-1"));
  // The first server trusts the second one's CA but has a certificate from another, and vice versa.
  other.write(stranger, "client", clientRequest("server-1"));
  authority.write(misled, "client", clientRequest("server-1"));
  std::filesystem::rename(stranger + "/ca.crt", certificates.path("other") + "/ca.crt");
  std::filesystem::rename(misled + "/ca.crt", stranger + "/ca.crt");
  std::filesystem::rename(certificates.path("other") + "/ca.crt", misled + "/ca.crt");
  const Arguments tls = {"--set", "tls.enabled=true", "--set", "tls.folder=" + own};
  const TestServer second(folder, with(tls, kAccepting), "second");
  int number = 0;
  // `certificate`: the setting with the first server's certificate. It connects to `dialled`.
  const auto verifyWith = [&](const std::string& certificate, const std::string& dialled) {
    const TestServer first(folder, with(with(tls, mayDial(dialled)), {"--set", certificate}),
                           "first");
    return runClient("verify", folder.path("run" + std::to_string(++number)),
                     with(kDirect, {"--steps", "2", "--set", modelWith("[2, 4, 8]"), "--tls", alice,
                                    "--server", first.address() + "," + second.address(), "--set",
                                    "connect.direct_addresses=[\"" + dialled + "\"]"}));
  };
  for (const std::string& certificate : {"edges.folder=" + edge, "tls.folder=" + both}) {
    const Ended ended = verifyWith(certificate, second.address());
    INFO(ended.errors);
    CHECK(ended.code == 0);
  }
  const auto errorOf = [&](const std::string& client, const std::string& dialled) {
    const Ended ended = verifyWith("edges.folder=" + client, dialled);
    INFO(ended.errors);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.errors, Contains("the direct link to " + dialled));
    return ended.errors;
  };
  CHECK_THAT(errorOf(stranger, second.address()), Contains("refuses the certificate"));
  CHECK_THAT(errorOf(misled, second.address()),
             Contains("the server's certificate is not from a CA that is trusted here"));
  CHECK_THAT(errorOf(edge, "localhost:" + std::to_string(second.port())),
             Contains("[wrong-server-name]") && Contains("it is for 127.0.0.1") &&
                 Contains("edges.folder"));
}

}  // namespace
}  // namespace cleave::test
