// A body on several servers, each of which computes a share of the micro-batches.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const std::string kTinyGraph =
    "model={name: graph, file: " CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2, cuts: [conv, pool]}";

// "[127.0.0.1:1001, 127.0.0.1:1002]"
std::string hostsAt(const std::vector<std::uint16_t>& ports) {
  std::string hosts;
  for (const std::uint16_t port : ports) {
    hosts += (hosts.empty() ? "[\"" : ", \"") + addressAt(port) + "\"";
  }
  return hosts + "]";
}

Arguments replicaArguments(const std::string& hosts, std::size_t rank) {
  return {"--set", "replicas.hosts=" + hosts, "--set", "replicas.rank=" + std::to_string(rank)};
}

// The servers of one group.
struct Replicas {
  explicit Replicas(const TemporaryFolder& folder, std::size_t count, const Arguments& more = {}) {
    const std::string hosts = hostsAt(freePorts(count));
    for (std::size_t rank = 0; rank < count; ++rank) {
      servers.push_back(std::make_unique<RestartableServer>(
          folder,
          with(with(replicaArguments(hosts, rank),
                    {"--set", "models.allow=[mlp, small_cnn, graph, sleep]"}),
               more),
          "store" + std::to_string(rank)));
    }
  }

  std::string addresses() const {
    std::string all;
    for (const auto& server : servers) all += (all.empty() ? "" : "+") + server->address();
    return all;
  }

  std::vector<std::unique_ptr<RestartableServer>> servers;
};

nlohmann::json verify(const std::string& run, const std::string& server, const Arguments& more) {
  return verifySteps(run, with({"--server", server}, more));
}

// Everything that has a state: dropout, Adam, averaged weights, and codecs with states.
const Arguments kStateful = {"--set", "model={name: mlp, width: 16, depth: 4, dropout: 0.2}",
                             "--set", "train.optimizer={name: adam}",
                             "--set", "train.ema=0.9",
                             "--set", "train.clip_norm=0.5",
                             "--set", "codec=power:rank=2",
                             "--set", "train.epochs=20",
                             "--set", "checkpoint.every_steps=3"};

std::string errorOf(const TemporaryFolder& folder, const std::string& server,
                    const Arguments& more = {}) {
  const std::string run = folder.path("refused");
  const Ended ended =
      runClient("train", run, with({"--server", server, "--set", "connect.retry_seconds=0"}, more));
  INFO(ended.errors);
  CHECK(ended.code == 2);
  CHECK_FALSE(std::filesystem::exists(run));
  return ended.errors;
}

TEST_CASE("split and whole model are bit-identical with 2, 3 and 4 replicas") {
  const TemporaryFolder folder;
  for (const std::size_t count : {2, 3, 4}) {
    const Replicas replicas(folder, count);
    std::size_t number = 0;
    // Each with one number of replicas; engine_test has all combinations.
    for (const Arguments& more : std::vector<Arguments>{
             {"--set", "model={name: mlp, width: 16, depth: 4, dropout: 0.2}"},
             {"--set", "train.schedule=gpipe"},
             {"--set", "train.schedule=1f1b"},
             {"--set", "train.schedule=zb"},
             {"--set", "train.staleness=2", "--set", "model={name: mlp, dropout: 0.2}"},
             {"--set", "train.recompute=true", "--set", "model={name: mlp, dropout: 0.2}"},
             {"--set", kTinyGraph},
             {"--set", kTinyGraph, "--set", "train.freeze=[\"conv.*\"]"}}) {
      if (++number % 3 != count % 3) continue;
      const std::string microBatches = count == 3 ? "7" : "4";
      CAPTURE(count, number);
      const auto result = verify(folder.path(std::to_string(count) + "-" + std::to_string(number)),
                                 replicas.addresses(),
                                 with({"--set", "train.micro_batches=" + microBatches}, more));
      CHECK(result.at("equal") == true);
      CHECK(result.at("compared").at("gradients/body").at("values") > 0);
    }
  }
}

// Each replica applies the statistics of all micro-batches.
TEST_CASE("a body with batch norms and replicas is bit-identical to the whole model") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const auto result = verify(folder.path("run"), replicas.addresses(),
                             {"--set", "model={name: small_cnn, width: 8, dropout: 0.2}", "--set",
                              "train.micro_batches=5", "--set", "eval.batch=8"});
  CHECK(result.at("equal") == true);
}

TEST_CASE("members of a cohort whose body has replicas compute the bits of pooled data") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2, {"--set", "limits.sessions=16"});
  int run = 0;
  for (const Arguments& more : std::vector<Arguments>{
           // More micro-batches of a member than an even share of one client's.
           {"--members", "2", "--set", "train.micro_batches=3"},
           {"--members", "5", "--set", "train.micro_batches=2"},
           {"--members", "3", "--set", "train.staleness=1"},
           {"--members", "3", "--set", "cohort.order=global"},
           {"--members", "3", "--set", "train.in_flight=1", "--set",
            "model={name: small_cnn, width: 4}", "--set", "data.shape=[1, 16, 16]"}}) {
    CAPTURE(more);
    const auto result = verify(folder.path(std::to_string(run++)), replicas.addresses(), more);
    CHECK(result.at("equal") == true);
  }
}

TEST_CASE("clipping, averaged weights and adapters are bit-identical with replicas") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const std::string adapters = "model={name: graph, file: " CLEAVE_SOURCE_DIR
                               "/tests/data/tiny.pt2, cuts: [norm, dropout], lora: {rank: 2, "
                               "dropout: 0.1, targets: [classifier]}}";
  int number = 0;
  for (const Arguments& more : std::vector<Arguments>{
           {"--set", "train.clip_norm=0.05", "--set", "train.optimizer={name: adam}"},
           {"--set", "train.clip_norm=0.05", "--set", "train.staleness=1"},
           {"--set", "train.ema=0.5", "--set", "model={name: small_cnn, width: 4}"},
           {"--set", adapters, "--set", "train.freeze=['*', '!block.*']"},
           // Nothing in the body is trained, so the replicas exchange nothing.
           {"--set", adapters}}) {
    CAPTURE(++number);
    const auto result =
        verify(folder.path(std::to_string(number)), replicas.addresses(),
               with({"--set", "train.micro_batches=5", "--set", "eval.batch=8"}, more));
    CHECK(result.at("equal") == true);
    CHECK(result.at("compared").at("weights/body").at("values") > 0);
  }
}

TEST_CASE("a run with replicas records all micro-batches, the reduction, and equal weights") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const std::string run = folder.path("run"), trace = folder.path("trace.json");
  const Ended ended =
      runClient("train", run,
                {"--json", "--server", replicas.addresses(), "--set", "train.micro_batches=4",
                 "--set", "model.width=2048", "--set", "train.epochs=3", "--trace", trace});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  REQUIRE(summary.contains("bound"));
  CHECK(summary.at("bound").at("over_bound").get<double>() >= 1);
  std::set<std::string> numbers;
  for (const CsvRow& row : readCsv(run + "/transfers.csv")) {
    if (row.at("flow") == "activation/0" && row.at("phase") == "train")
      numbers.insert(row.at("micro_batch"));
  }
  CHECK(numbers == std::set<std::string>{"0", "1", "2", "3"});
  CHECK(sumOf(readCsv(run + "/steps.csv"), "reduce_seconds") > 0);
  CHECK_THAT(readFile(trace), Contains("Reduce"));
  CHECK(replicas.servers[1]->server().process().waitForOutput("unencrypted", kPatience));
}

TEST_CASE("if a replica is killed, the run continues and ends with the same weights") {
  const TemporaryFolder folder;
  Replicas replicas(folder, 2);
  const Arguments arguments = with(kStateful, {"--server", replicas.addresses()});
  const std::string expected = folder.path("undisturbed");
  REQUIRE(runClient("train", expected, arguments).code == 0);
  int number = 0;
  for (const std::size_t rank : {0, 1}) {
    for (const std::string place : {"reduce:1:kill", "batch:17:kill", "snapshot:2:kill"}) {
      CAPTURE(rank, place);
      const std::string run = folder.path("run" + std::to_string(++number));
      trainThroughKills(*replicas.servers[rank], {place}, run, arguments);
      checkSameModel(expected, run);
    }
  }
  // A killed client.
  const std::string run = folder.path("client");
  const Process client = startClient("train", run, arguments, failingAt("committed:4:kill"));
  REQUIRE(client.wait(kPatience));
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  checkSameModel(expected, run);
}

TEST_CASE("a broken connection to a replica is replaced, and no work is lost") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const std::string expected = folder.path("undisturbed");
  REQUIRE(runClient("train", expected, with(kStateful, {"--server", replicas.addresses()})).code ==
          0);
  Relay relay("127.0.0.1", replicas.servers[1]->server().port());
  const RepeatedCuts cuts(relay, Relay::Way::up, 30'011);
  const std::string run = folder.path("run");
  const Ended ended = runClient("train", run,
                                with(kStateful, {"--server", replicas.servers[0]->address() + "+" +
                                                                 addressAt(relay.port())}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("reconnected to"));
  CHECK(nlohmann::json::parse(readFile(run + "/summary.json")).at("steps_redone") == 0);
  checkSameModel(expected, run);
}

// Three blocks at the server, or one per body.
Arguments dividedAmong(const std::string& cuts) {
  return with(kStateful, {"--set", "model.cuts=" + cuts, "--set", "train.micro_batches=5"});
}

TEST_CASE("bodies with different numbers of replicas are bit-identical to the whole model") {
  const TemporaryFolder folder;
  const Replicas pair(folder, 2);
  const TestServer alone(folder, {}, "alone");
  const std::string two = pair.addresses() + "," + alone.address();
  const Arguments stale = {"--set", "train.staleness=1", "--set", "model.dropout=0.2"};
  int number = 0;
  for (const auto& [servers, cuts] :
       std::map<std::string, std::string>{{two, "[1, 2, 4]"},
                                          {alone.address() + "," + pair.addresses(), "[1, 2, 4]"},
                                          {pair.addresses() + "," + pair.addresses(), "[1, 2, 4]"},
                                          {two + "," + alone.address(), "[1, 2, 3, 4]"}}) {
    for (const Arguments& more : {Arguments{}, stale}) {
      CAPTURE(servers, ++number);
      const auto result =
          verify(folder.path(std::to_string(number)), servers,
                 with({"--set", "model={name: mlp, width: 16, depth: 4, cuts: " + cuts + "}",
                       "--set", "train.micro_batches=5"},
                      more));
      CHECK(result.at("equal") == true);
    }
  }
}

TEST_CASE("a run of bodies with replicas continues after a kill with the same weights") {
  const TemporaryFolder folder;
  Replicas replicas(folder, 2);
  const TestServer alone(folder, {}, "alone");
  const Arguments arguments =
      with(dividedAmong("[1, 2, 4]"), {"--server", replicas.addresses() + "," + alone.address()});
  const std::string expected = folder.path("undisturbed"), run = folder.path("run");
  REQUIRE(runClient("train", expected, arguments).code == 0);
  trainThroughKills(*replicas.servers[1], {"snapshot:2:kill"}, run, arguments);
  checkSameModel(expected, run);
}

TEST_CASE("several runs use the same replicas at the same time") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 3);
  const Arguments arguments = with(kStateful, {"--server", replicas.addresses()});
  std::vector<std::unique_ptr<Process>> clients;
  for (const std::string name : {"a", "b", "c"}) {
    clients.push_back(
        std::make_unique<Process>(startClient("train", folder.path(name), arguments)));
  }
  for (const auto& client : clients) {
    const Ended ended = finish(*client);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  }
  checkSameModel(folder.path("a"), folder.path("b"));
  checkSameModel(folder.path("a"), folder.path("c"));
}

TEST_CASE("a trained body with replicas is evaluated by one of them") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const std::string run = folder.path("run");
  REQUIRE(runClient("train", run, {"--server", replicas.addresses()}).code == 0);
  const auto alone = askJson({"eval", run + "/model.safetensors"});
  const auto through =
      askJson({"eval", run + "/model.safetensors", "--server", replicas.addresses()});
  CHECK(alone.at("metrics").at("loss") == through.at("metrics").at("loss"));
}

TEST_CASE("a server refuses to be another replica than it is") {
  const TemporaryFolder folder, others;  // each group has its own stores
  const Replicas pair(folder, 2), three(others, 3);
  const TestServer alone(folder, {}, "alone");
  const auto& first = pair.servers[0]->address();
  const auto& second = pair.servers[1]->address();
  CHECK_THAT(errorOf(folder, second + "+" + first), Contains("[wrong-replica]"));
  CHECK_THAT(errorOf(folder, first + "+" + first), Contains("[wrong-replica]"));
  CHECK_THAT(errorOf(folder, first + "+" + alone.address()),
             Contains("[no-replicas]") && Contains("replicas.hosts"));
  CHECK_THAT(errorOf(folder, three.servers[0]->address() + "+" + three.servers[1]->address()),
             Contains("[wrong-replica]"));
  // An ordinary run may use a replica's server.
  CHECK(runClient("train", folder.path("ordinary"), {"--server", second}).code == 0);
}

TEST_CASE("replicas of different groups are refused") {
  const TemporaryFolder folder, others;
  const Replicas one(folder, 2), other(others, 2);
  const std::string errors =
      errorOf(folder, one.servers[0]->address() + "+" + other.servers[1]->address());
  CHECK_THAT(errors, Contains("[wrong-replica]") && Contains("different groups"));
}

TEST_CASE("each replica needs a micro-batch of each batch") {
  const TemporaryFolder folder;
  const std::string two = "127.0.0.1:1+127.0.0.1:2";
  CHECK_THAT(errorOf(folder, two, {"--set", "train.micro_batches=1"}),
             Contains("[bad-replicas]") && Contains("train.micro_batches"));
  // The last batch has one sample.
  CHECK_THAT(errorOf(folder, two, {"--set", "data.train.size=33", "--set", "train.batch=32"}),
             Contains("[bad-replicas]") && Contains("train.batch"));
  CHECK_THAT(errorOf(folder, two, {"--set", "codec=delta(block:bits=4)"}),
             Contains("[bad-codec-spec]"));
  CHECK_THAT(errorOf(folder, two, {"--set", "train.schedule=1f1b", "--set", "train.staleness=1"}),
             Contains("[bad-staleness]"));
  CHECK_THAT(errorOf(folder, two + ",127.0.0.1:3"), Contains("[bad-servers]"));
  const Arguments divided = {"--set", "model={name: mlp, depth: 4, cuts: [1, 2, 4]}"};
  CHECK_THAT(errorOf(folder, two + ",127.0.0.1:3", with(divided, {"--set", "connect.direct=true"})),
             Contains("[bad-servers]") && Contains("connect.direct"));
  CHECK_THAT(errorOf(folder, two + ",127.0.0.1:3", with(divided, {"--set", "train.schedule=1f1b"})),
             Contains("[bad-run-spec]") && Contains("train.schedule"));
}

TEST_CASE("a replica that has other weights ends the run, also without checkpoints") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  replicas.servers[1]->server().stop();
  replicas.servers[1]->start(failingAt("body-update:3:eio"));
  const Ended ended = runClient("train", folder.path("run"),
                                with(kNoCheckpoints, {"--server", replicas.addresses()}));
  INFO(ended.errors);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("[replicas-differ]") && Contains("weights after step 3"));
}

TEST_CASE("SIGTERM stops a server whose run waits for another replica") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  Process client = startSlowClient(folder.path("run"), replicas.addresses());
  waitForSteps(folder.path("run"));
  Process& other = replicas.servers[1]->server().process();
  other.signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // until replica 0 waits
  client.signal(SIGKILL);
  Process& server = replicas.servers[0]->server().process();
  server.signal(SIGTERM);
  CHECK(server.wait(kPatience) == 0);
  other.signal(SIGCONT);
}

TEST_CASE("the number of replicas is fixed for a run") {
  const TemporaryFolder folder;
  const Replicas replicas(folder, 2);
  const std::string run = folder.path("run");
  const Process client =
      startClient("train", run, with(kStateful, {"--server", replicas.addresses()}),
                  failingAt(GENERATE("committed:4:kill", "batch:2:kill")));
  REQUIRE(client.wait(kPatience));
  const Ended ended = resume(run, {"--server", replicas.servers[0]->address()});
  INFO(ended.errors);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("[bad-replicas]") && Contains("joined by +"));
  CHECK(resume(run).code == 0);
}

TEST_CASE("a server refuses replicas on a network that is not private") {
  const TemporaryFolder folder;
  const auto refusal = [&](const Arguments& more) {
    const Process server = Process::start(with({serverProgram(), "serve", "--set", "listen.port=0",
                                                "--set", "store=" + folder.path("store")},
                                               more));
    const Ended ended = finish(server);
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(refusal(replicaArguments("[\"192.0.2.1:4810\", \"192.0.2.2:4810\"]", 0)),
             Contains("[unsafe-replicas]") && Contains("replicas.private"));
  CHECK_THAT(refusal(replicaArguments("[\"127.0.0.1:4810\"]", 0)), Contains("[bad-config]"));
  CHECK_THAT(refusal(replicaArguments("[\"127.0.0.1:4810\", \"127.0.0.1:4811\"]", 2)),
             Contains("[bad-config]"));
}

}  // namespace
}  // namespace cleave::test
