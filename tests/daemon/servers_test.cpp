// Several servers, each of which computes one of the bodies between the client's head and tail.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// The model has the blocks flatten, fc1, relu1, fc2, …, relu4, fc_out.
std::string modelWith(const std::string& cuts) {
  return "model={name: mlp, width: 16, depth: 4, dropout: 0.2, cuts: " + cuts + "}";
}

// Two bodies. Everything that has a state is included: dropout, Adam, and codecs with states.
const Arguments kTwoBodies = {
    "--set", modelWith("[2, 4, 8]"),    "--set", "train.optimizer={name: adam}",
    "--set", "codec=power:rank=2",      "--set", "train.epochs=20",
    "--set", "checkpoint.every_steps=3"};

nlohmann::json verify(const std::string& run, const Arguments& more) {
  const Ended ended = runClient("verify", run,
                                with({"--json", "--steps", "2", "--set", "train.batch=30", "--set",
                                      "train.optimizer={name: sgd, momentum: 0.9}"},
                                     more));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

// Fails the test unless the run's weights are those of the run in the folder "undisturbed".
void checkSameModel(const TemporaryFolder& folder, const std::string& run) {
  const std::string expected = readFile(folder.path("undisturbed") + "/model.safetensors");
  REQUIRE_FALSE(expected.empty());
  CHECK((readFile(run + "/model.safetensors") == expected));
}

TEST_CASE("split and whole model are bit-identical with 2, 3 and 4 servers") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  int number = 0;
  for (const std::string cuts : {"[2, 4, 8]", "[1, 3, 6, 8]", "[1, 3, 5, 7, 9]"}) {
    std::string addresses = server.address();
    for (const char c : cuts) addresses += c == ',' ? "," + server.address() : "";
    addresses.resize(addresses.rfind(','));  // one server less than there are cuts
    for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
      for (const std::string microBatches : {"1", "4"}) {
        CAPTURE(cuts, schedule, microBatches);
        const auto result =
            verify(folder.path("run" + std::to_string(++number)),
                   {"--server", addresses, "--set", modelWith(cuts), "--set",
                    "train.schedule=" + schedule, "--set", "train.micro_batches=" + microBatches});
        CHECK(result.at("equal") == true);
        CHECK(result.at("compared").at("gradients/body").at("values") > 0);
      }
    }
  }
}

TEST_CASE("without --server, the client starts a server for each body") {
  const TemporaryFolder folder;
  const auto result = verify(folder.path("run"), {"--set", modelWith("[1, 3, 6, 8]")});
  CHECK(result.at("equal") == true);
  CHECK(std::filesystem::exists(folder.path("run") + "/server-3/local"));
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
  const TemporaryFolder folder;
  RestartableServer first(folder), second(folder, {}, "second");
  const Arguments run = with(kTwoBodies, {"--server", first.address() + "," + second.address()});
  REQUIRE(runClient("train", folder.path("undisturbed"), run).code == 0);
  int number = 0;
  for (RestartableServer* const killed : {&first, &second}) {
    for (const std::string place :
         {"batch:17:kill", "snapshot:4:kill", "checkpoint-written:2:kill"}) {
      CAPTURE(killed == &first, place);
      killed->kill();
      killed->start(failingAt(place));
      const std::string path = folder.path("run" + std::to_string(++number));
      const Process client = startClient("train", path, run);
      REQUIRE(killed->server().process().wait(kPatience));
      killed->start();
      const Ended ended = finish(client);
      INFO(ended.errors);
      REQUIRE(ended.code == 0);
      checkSameModel(folder, path);
    }
  }
}

TEST_CASE("a killed client resumes with all servers") {
  const TemporaryFolder folder;
  RestartableServer first(folder), second(folder, {}, "second");
  const Arguments arguments =
      with(kTwoBodies, {"--server", first.address() + "," + second.address()});
  REQUIRE(runClient("train", folder.path("undisturbed"), arguments).code == 0);
  const std::string run = folder.path("run");
  const Process client = startClient("train", run, arguments, failingAt("committed:4:kill"));
  REQUIRE(client.wait(kPatience));
  second.kill();
  second.start();
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  checkSameModel(folder, run);
}

TEST_CASE("a run with several servers needs one address per body") {
  const TemporaryFolder folder;
  const Ended tooFew = runClient("verify", folder.path("run"),
                                 {"--set", modelWith("[2, 4, 8]"), "--server", "127.0.0.1:4800"});
  CHECK(tooFew.code == 2);
  CHECK_THAT(tooFew.errors, Contains("[bad-servers]"));
  const Ended disordered =
      runClient("verify", folder.path("run"), {"--set", modelWith("[2, 8, 4]")});
  CHECK(disordered.code == 2);
  CHECK_THAT(disordered.errors, Contains("[bad-cuts]"));
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

}  // namespace
}  // namespace cleave::test
