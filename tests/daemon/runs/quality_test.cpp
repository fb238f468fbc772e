// Codecs whose quality is too low: the run falls back to less lossy ones, on both sides and in the
// same steps, also if it is interrupted.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// Checks every 3 steps. No lossy codec has an SNR of 300 dB, so each check finds a fault.
const Arguments kStrict = {"--set", "codec=uniform:bits=4",    "--set", "quality.every=3",
                           "--set", "quality.min_snr=300",     "--set", "train.epochs=4",
                           "--set", "checkpoint.every_steps=2"};

// The codec that each training step's tensors must have.
std::string codecIn(std::uint64_t step) {
  return step > 3 && step <= 6 ? "block:bits=8" : "uniform:bits=4";
}

void checkLevels(const std::string& run) {
  std::size_t tensors = 0;
  for (const CsvRow& row : readCsv(run + "/transfers.csv")) {
    if (row.at("phase") != "train" || row.at("flow").ends_with("/body")) continue;
    const std::uint64_t step = std::stoull(row.at("step"));
    INFO(run << ": step " << step << ", " << row.at("flow"));
    CHECK(row.at("codec") == codecIn(step));
    const double ratio = std::stod(row.at("wire_bytes")) / std::stod(row.at("raw_bytes"));
    CHECK((ratio > 1) == (step > 6));  // sent raw
    ++tensors;
  }
  CHECK(tensors > 0);
}

TEST_CASE("a codec of too low quality is replaced on both sides, from the same step") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string run = folder.path("run");
  const Ended ended = runClient("train", run, with(kStrict, {"--server", server.address()}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const json quality = summaryOf(run).at("quality");
  CHECK(quality.at("checks") == 2);
  REQUIRE(quality.at("fallbacks").size() == 2);
  CHECK(quality.at("fallbacks").at(0).at("step") == 4);
  CHECK(quality.at("fallbacks").at(0).at("codec") == "block:bits=8");
  CHECK(quality.at("fallbacks").at(1).at("step") == 7);
  CHECK(quality.at("fallbacks").at(1).at("codec") == "no codec");
  CHECK_THAT(readFile(run + "/log.txt"), Contains("falls back to block:bits=8 from step 4"));
  CHECK_THAT(ended.output, Contains("no codec from step 7"));
  checkLevels(run);
  checkFilesComplete(run);

  // The same weights after crashes of the client, before and after each fallback.
  int number = 0;
  for (const std::string place :
       {"batch:4:kill", "committed:2:kill", "committed:4:kill", "batch:9:kill", "batch:11:kill"}) {
    INFO(place);
    const std::string killed = folder.path("killed" + std::to_string(++number));
    const Process client = startClient(
        "train", killed, with(kStrict, {"--server", server.address()}), failingAt(place));
    REQUIRE(client.wait(kPatience));
    const Ended resumed = resume(killed);
    INFO(resumed.errors);
    REQUIRE(resumed.code == 0);
    checkSameModel(run, killed);
    checkLevels(killed);
    CHECK(summaryOf(killed).at("quality") == quality);
  }
  // And after crashes of the server. With a slow disk, there may be few snapshots.
  const std::string survived = folder.path("survived");
  trainThroughKills(server, {"batch:5:kill", "batch:9:kill"}, survived,
                    with(kStrict, {"--server", server.address()}));
  checkSameModel(run, survived);
}

TEST_CASE("the server's records have the same codecs") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Ended ended =
      runClient("train", folder.path("run"), with(kStrict, {"--server", server.address()}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  server.stop();
  REQUIRE(server.runFolders().size() == 1);
  checkLevels(server.runFolders().front());
}

TEST_CASE("checks that find no fault change nothing but the bytes of the checks") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments map = {"--set",
                         "codec={activation/0: 'delta(block:bits=4)', activation/1: "
                         "'block:bits=4', gradient/1: 'block:bits=4', gradient/0: "
                         "'power:rank=2'}"};
  const Arguments common = with({"--server", server.address(), "--set", "train.epochs=3", "--set",
                                 "model={name: mlp, width: 32, depth: 2, dropout: 0.1}"},
                                map);
  const std::string without = folder.path("without"), checked = folder.path("checked");
  REQUIRE(runClient("train", without, common).code == 0);
  const Ended ended = runClient(
      "train", checked,
      with(common, {"--set", "quality={every: 2, min_snr: -1000, max_loss_increase: 1000}"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const json quality = summaryOf(checked).at("quality");
  CHECK(quality.at("checks") > 2);
  CHECK(quality.at("fallbacks").empty());
  CHECK(quality.at("highest_loss_increase").is_number());
  checkSameModel(without, checked);
  CHECK_FALSE(summaryOf(without).contains("quality"));
}

// Checks that a run with checks every 3 steps has fallen back twice, first because of an SNR.
void checkFallsBackBySnr(const std::string& run) {
  const json fallbacks = summaryOf(run).at("quality").at("fallbacks");
  REQUIRE(fallbacks.size() == 2);
  CHECK(fallbacks.at(0).at("step") == 4);
  CHECK_THAT(fallbacks.at(0).at("reason").get<std::string>(), Contains("signal-to-noise ratio"));
}

TEST_CASE("the SNR of tensors that servers send is checked too") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  for (const std::string flow : {"activation/1", "gradient/0"}) {
    const std::string run = folder.path(flow.substr(0, 4));
    const Ended ended = runClient(
        "train", run,
        {"--server", server.address(), "--set", "codec={" + flow + ": 'uniform:bits=4'}", "--set",
         "quality={every: 3, min_snr: 300, max_loss_increase: 1000}", "--set", "train.epochs=2"});
    INFO(flow << ": " << ended.errors);
    REQUIRE(ended.code == 0);
    checkFallsBackBySnr(run);
  }
}

TEST_CASE("the SNR of tensors that cross a direct link is checked too") {
  const TemporaryFolder folder;
  const TestServer second(folder, {"--set", "edges.accept=true"}, "second");
  const TestServer first(folder, {"--set", "edges.allow=[\"" + second.address() + "\"]"}, "first");
  for (const std::string flow : {"activation/1", "gradient/1"}) {
    const std::string others =
        "activation/0: none, activation/2: none, gradient/0: none, "
        "gradient/2: none, " +
        std::string(flow == "activation/1" ? "gradient/1" : "activation/1") + ": none, ";
    const std::string run = folder.path(flow.substr(0, 4));
    const Ended ended = runClient(
        "train", run,
        {"--server", first.address() + "," + second.address(), "--set",
         "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}", "--set",
         "codec={" + others + flow + ": 'uniform:bits=4'}", "--set",
         "quality={every: 3, min_snr: 300, max_loss_increase: 1000}", "--set", "train.epochs=2"});
    INFO(flow << ": " << ended.errors);
    REQUIRE(ended.code == 0);
    checkFallsBackBySnr(run);
  }
}

TEST_CASE("a check evaluates first without codecs, then with them, in both directions") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string run = folder.path("run");
  // More steps before the first check than the links remember.
  const Ended ended = runClient("train", run,
                                {"--server", server.address(), "--set", "codec=block:bits=4",
                                 "--set", "train.epochs=10", "--set", "eval.every=0", "--set",
                                 "quality={every: 70, min_snr: -1000, max_loss_increase: 1000}"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(summaryOf(run).at("quality").at("checks") == 1);
  server.stop();
  for (const std::string& side : {run, server.runFolders().front()}) {
    std::size_t tensors = 0;
    for (const CsvRow& row : readCsv(side + "/transfers.csv")) {
      if (row.at("phase") != "eval") continue;
      INFO(side << ": evaluation " << row.at("step") << ", " << row.at("flow"));
      const double ratio = std::stod(row.at("wire_bytes")) / std::stod(row.at("raw_bytes"));
      CHECK((ratio > 1) == (row.at("step") == "1"));
      ++tensors;
    }
    CHECK(tensors == 2 * 2 * 4);  // evaluations, flows, micro-batches
  }
}

TEST_CASE("several servers with direct links and overlapping steps fall back in the same step") {
  const TemporaryFolder folder;
  for (const bool isDirect : {false, true}) {
    CAPTURE(isDirect);
    const std::string name = isDirect ? "direct" : "passed";
    TestServer second(folder, {"--set", "edges.accept=true"}, name + "-second");
    TestServer first(folder, {"--set", "edges.allow=[\"" + second.address() + "\"]"},
                     name + "-first");
    const std::string run = folder.path(name);
    const Ended ended =
        runClient("train", run,
                  with(kStrict, {"--server", first.address() + "," + second.address(), "--set",
                                 "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}", "--set",
                                 "train.staleness=2", "--set",
                                 std::string("connect.direct=") + (isDirect ? "true" : "false")}));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(summaryOf(run).at("quality").at("fallbacks").size() == 2);
    first.stop();
    second.stop();
    checkLevels(run);
    for (const TestServer* server : {&first, &second}) {
      REQUIRE(server->runFolders().size() == 1);
      checkLevels(server->runFolders().front());
    }
  }
}

}  // namespace
}  // namespace cleave::test
