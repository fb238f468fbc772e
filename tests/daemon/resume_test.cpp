// Killed clients, killed servers, and damaged or foreign checkpoints: the run resumes from the
// newest checkpoint that both sides have, with a bit-identical result, or is refused.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

// A run with everything that has a state: dropout, Adam, the power iteration of a codec, and epochs
// with evaluations, whose batches are counted.
const Arguments kRun = {"--set", "model={name: mlp, width: 32, depth: 2, dropout: 0.1}",
                        "--set", "train.optimizer={name: adam}",
                        "--set", "codec=power:rank=2",
                        "--set", "train.epochs=20",  // enough for two commits on a busy machine
                        "--set", "checkpoint.every_steps=3"};

std::string modelOf(const std::string& run) { return readFile(run + "/model.safetensors"); }

// The final weights of an undisturbed run.
std::string expectedModel(const TemporaryFolder& folder, const std::string& address,
                          const Arguments& more = {}) {
  const std::string run = folder.path("undisturbed");
  const Ended ended = runClient("train", run, with(with(kRun, more), {"--server", address}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return modelOf(run);
}

// A run whose client was killed, by default after committing two checkpoints. A commit writes two
// files.
void trainUntilKilled(const std::string& run, const std::string& address,
                      const std::string& place = "committed:4:kill") {
  const Process client =
      startClient("train", run, with(kRun, {"--server", address}), failingAt(place));
  REQUIRE(client.wait(kPatience));
  REQUIRE_FALSE(fs::exists(run + "/summary.json"));
}

std::size_t rowsOf(const std::string& run, const std::string& phase) {
  std::size_t rows = 0;
  for (const CsvRow& row : readCsv(run + "/steps.csv")) rows += row.at("phase") == phase ? 1 : 0;
  return rows;
}

void flipByteIn(const std::string& path) {
  std::string content = readFile(path);
  REQUIRE_FALSE(content.empty());
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string newestCheckpoint(const std::string& run) {
  std::string newest;
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
    if (entry.path().extension() == ".safetensors")
      newest = std::max(newest, entry.path().string());
  }
  REQUIRE_FALSE(newest.empty());
  return newest;
}

// Losses by epoch. If an epoch has several rows, the last one counts.
std::map<std::string, std::string> lossesByEpoch(const std::string& run) {
  std::map<std::string, std::string> losses;
  for (const CsvRow& row : readCsv(run + "/epochs.csv")) {
    losses[row.at("epoch")] = row.at("train_loss") + " " + row.at("eval_loss");
  }
  return losses;
}

std::map<std::string, std::string> lossesByStep(const std::string& run) {
  std::map<std::string, std::string> losses;
  for (const CsvRow& row : readCsv(run + "/steps.csv")) {
    if (row.at("phase") == "train" || row.at("phase") == "eval") {
      losses[row.at("phase") + " " + row.at("step")] = row.at("loss");
    }
  }
  return losses;
}

TEST_CASE("a client killed at any point resumes and ends with the same weights") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  int number = 0;
  for (const std::string place :
       {"batch:1:kill", "batch:3:kill", "batch:17:kill", "snapshot:1:kill", "snapshot:4:kill",
        "checkpoint-state:2:kill", "checkpoint-record:2:kill", "checkpoint-written:2:kill",
        "commit:2:kill", "committed:2:kill", "sync:6:kill", "rename:9:kill", "generation:1:kill",
        "summary:1:kill"}) {
    INFO(place);
    const std::string run = folder.path("run" + std::to_string(++number));
    const Process client =
        startClient("train", run, with(kRun, {"--server", server.address()}), failingAt(place));
    REQUIRE(client.wait(kPatience));
    const Ended ended = resume(run);
    INFO(ended.errors);
    if (ended.code == 2) {
      CHECK(std::string(place) == "summary:1:kill");  // only then is the run complete
      CHECK_THAT(ended.errors, Contains("[run-done]"));
    } else {
      REQUIRE(ended.code == 0);
      CHECK(lossesByEpoch(run) == lossesByEpoch(folder.path("undisturbed")));
      CHECK(lossesByStep(run) == lossesByStep(folder.path("undisturbed")));
    }
    CHECK((modelOf(run) == expected));
  }
}

// Codecs with a memory, in both directions.
const Arguments kChangeCodecs = {
    "--set",
    "codec={activation/0: 'delta(block:bits=4)', gradient/0: 'ef(block:bits=4)', "
    "activation/1: 'zstd:level=1(delta:skip=0.05(block:bits=2))', gradient/1: "
    "'ef(topk:ratio=0.2)'}",
    "--set", "model={name: mlp, width: 32, depth: 2}"};

TEST_CASE("kept samples and residuals are restored after a killed client or server") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address(), kChangeCodecs);
  int number = 0;
  for (const std::string place : {"batch:3:kill", "batch:17:kill", "committed:4:kill"}) {
    INFO("client " << place);
    const std::string run = folder.path("run" + std::to_string(++number));
    const Process client =
        startClient("train", run, with(with(kRun, kChangeCodecs), {"--server", server.address()}),
                    failingAt(place));
    REQUIRE(client.wait(kPatience));
    const Ended ended = resume(run);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK((modelOf(run) == expected));
    CHECK(lossesByStep(run) == lossesByStep(folder.path("undisturbed")));
  }
  const std::string run = folder.path("run" + std::to_string(++number));
  trainThroughKill(server, "batch:17:kill", run,
                   with(with(kRun, kChangeCodecs), {"--server", server.address()}));
  CHECK((modelOf(run) == expected));
}

TEST_CASE("a client that is killed before its run begins can be started again") {
  const TemporaryFolder folder;
  for (const std::string place : {"rename:1:kill", "rename:2:kill", "rename:3:kill"}) {
    INFO(place);
    const std::string run = folder.path(place);
    const Process client = startClient("train", run, kRun, failingAt(place));
    REQUIRE(client.wait(kPatience));
    REQUIRE_FALSE(fs::exists(run + "/run.json"));
    const Ended ended = runClient("train", run, kRun);
    INFO(ended.errors);
    CHECK(ended.code == 0);
  }
  // Without a lock, the file may be the user's own.
  fs::create_directory(folder.path("own"));
  std::ofstream(folder.path("own") + "/config.yaml") << "model: {name: mlp}\n";
  const Ended refused = runClient("train", folder.path("own"), kRun);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Contains("[run-exists]"));
}

TEST_CASE(
    "steps that are repeated after a killed client are counted, even if their rows were lost") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string run = folder.path("run");
  // The client is killed before its first checkpoint, and usually before it writes a row.
  trainUntilKilled(run, server.address(), "batch:3:kill");
  const Ended ended = resume(run, {"--from-start"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  server.server().stop();  // writes the last rows
  std::string stored;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("store"))) {
    if (entry.path().filename() == "steps.csv") stored = entry.path().parent_path().string();
  }
  const auto summary = nlohmann::json::parse(readFile(run + "/summary.json"));
  CHECK(summary.at("steps_redone") > 0);
  CHECK(summary.at("steps_redone").get<std::size_t>() + summary.at("steps").get<std::size_t>() ==
        rowsOf(stored, "train"));
}

TEST_CASE("a client survives a killed server, and ends with the same weights") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  int number = 0;
  for (const std::string place :
       {"batch:2:kill", "batch:17:kill", "snapshot:2:kill", "checkpoint-state:2:kill",
        "checkpoint-record:2:kill", "checkpoint-written:2:kill", "rename:9:kill"}) {
    INFO(place);
    const std::string run = folder.path("run" + std::to_string(++number));
    trainThroughKill(server, place, run, with(kRun, {"--server", server.address()}));
    CHECK((modelOf(run) == expected));
    CHECK(lossesByEpoch(run) == lossesByEpoch(folder.path("undisturbed")));
  }
}

TEST_CASE(
    "if a checkpoint is damaged or missing on one side, the run resumes from the one before it") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  int number = 0;
  for (const bool atServer : {false, true}) {
    for (const bool isMissing : {false, true}) {
      INFO((atServer ? "server" : "client") << (isMissing ? ", missing" : ", damaged"));
      const std::string run = folder.path("run" + std::to_string(++number));
      trainUntilKilled(run, server.address());
      const auto record = nlohmann::json::parse(readFile(run + "/run.json"));
      const std::string side =
          atServer ? folder.path("store/local/" + record.at("run").get<std::string>()) : run;
      const std::string file = newestCheckpoint(side);
      if (isMissing) {
        fs::remove(file);
      } else {
        flipByteIn(file);
      }
      const Ended ended = resume(run);
      INFO(ended.errors);
      REQUIRE(ended.code == 0);
      CHECK((modelOf(run) == expected));
    }
  }
}

TEST_CASE("resuming without the server's checkpoints is refused, and --from-start starts over") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  server.kill();
  const auto record = nlohmann::json::parse(readFile(run + "/run.json"));
  fs::remove_all(folder.path("store/local/" + record.at("run").get<std::string>()));
  server.start();
  const Ended refused = resume(run);
  CHECK(refused.code == 1);
  CHECK_THAT(refused.errors, Contains("[no-checkpoint]") && Contains("--from-start"));
  const Ended ended = resume(run, {"--from-start"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((modelOf(run) == expected));
}

TEST_CASE("only one client can resume a run") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  const std::string copy = folder.path("copy");
  fs::copy(run, copy, fs::copy_options::recursive);

  // While one client uses the folder, another client is refused.
  const Process first =
      Process::start({clientProgram(), "train", "--resume", run, "--set", "wait={F1: 20, B1: 20}"});
  REQUIRE(first.waitForOutput("step", kPatience));
  const Ended second = resume(run);
  CHECK(second.code == 2);
  CHECK_THAT(second.errors, Contains("[run-in-use]"));
  REQUIRE(first.wait(kPatience));

  // The copied folder has an older generation than the server.
  const Ended copied = resume(copy);
  CHECK(copied.code == 1);
  CHECK_THAT(copied.errors, Contains("[stale-generation]") && Contains("--take-over"));
}

TEST_CASE("a folder or a configuration that cannot be resumed is refused") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const Ended none = resume(folder.path("none"));
  CHECK(none.code == 2);
  CHECK_THAT(none.errors, Contains("[no-run]"));

  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  // The second change concerns the client only.
  for (const char* setting : {"run.seed=2", "train.loss={label_smoothing: 0.1}"}) {
    const Ended other = resume(run, {"--set", setting});
    CHECK(other.code == 2);
    CHECK_THAT(other.errors, Contains("[other-run-spec]"));
  }
  const Ended threads = resume(run, {"--set", "threads.client=2"});
  if (threads.code != 0) CHECK_THAT(threads.errors, Contains("[inexact]"));
  if (threads.code != 0) CHECK(resume(run).code == 0);
  const Ended done = resume(run);
  CHECK(done.code == 2);
  CHECK_THAT(done.errors, Contains("[run-done]"));
}

TEST_CASE("an interrupted client resumes without repeating a step") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string run = folder.path("run");
  Process client = startClient(
      "train", run,
      with(kRun, {"--server", server.address(), "--set", "checkpoint.every_steps=100000", "--set",
                  "train.epochs=100", "--set", "eval.every=0"}));
  waitForSteps(run);
  client.signal(SIGTERM);
  const Ended interrupted = finish(client);
  INFO(interrupted.errors);
  CHECK(interrupted.code == 1);
  CHECK_THAT(interrupted.errors, Contains("train --resume " + run));
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(rowsOf(run, "train") == 800);
}

TEST_CASE("a restarted server loses no step") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  const std::string run = folder.path("run");
  // There are no periodic checkpoints.
  const Process client =
      startClient("train", run,
                  with(kRun, {"--server", server.address(), "--set",
                              "checkpoint.every_steps=100000", "--set", "train.epochs=60"}));
  waitForSteps(run);
  restartWithoutLoss(server, client, run);
}

// A run with one epoch of 8 steps and an evaluation that takes several seconds.
Process startLongEvaluation(const std::string& run, const std::string& address) {
  return startClient(
      "train", run,
      with(kRun, {"--server", address, "--set", "checkpoint.every_steps=100000", "--set",
                  "train.epochs=1", "--set", "eval.batch=1", "--set", "wait={F1: 60, B1: 1}"}));
}

void waitForEvaluation(const std::string& run) {
  waitForSteps(run);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (rowsOf(run, "eval") == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  REQUIRE(rowsOf(run, "eval") > 0);
}

TEST_CASE("a client that is interrupted during a long evaluation repeats no step") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string run = folder.path("run");
  Process client = startLongEvaluation(run, server.address());
  waitForEvaluation(run);
  client.signal(SIGTERM);
  CHECK(finish(client).code == 1);
  CHECK(rowsOf(run, "eval") < 64);
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(rowsOf(run, "train") == 8);
  CHECK(readCsv(run + "/epochs.csv").size() == 1);
}

TEST_CASE("a server that is restarted during a long evaluation loses no step") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string run = folder.path("run");
  const Process client = startLongEvaluation(run, server.address());
  waitForEvaluation(run);
  restartWithoutLoss(server, client, run);
  CHECK(rowsOf(run, "train") == 8);
}

TEST_CASE("if a disk fails at any write, the run completes or can be resumed") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  int number = 0;
  for (const char* const call : {"write", "sync", "rename"}) {
    for (const char* const error : {"enospc", "eio"}) {
      // The first few writes create the run's folder.
      for (const int nth : {1, 4, 6, 9, 12}) {
        const std::string place = std::string(call) + ":" + std::to_string(nth) + ":" + error;
        INFO(place);
        const std::string run = folder.path("run" + std::to_string(++number));
        const Process client =
            startClient("train", run, with(kRun, {"--server", server.address()}), failingAt(place));
        const Ended ended = finish(client);
        INFO(ended.errors);
        if (ended.code != 0) {
          CHECK_THAT(ended.errors, Contains("[cannot-write]"));
          if (fs::exists(run + "/run.json")) CHECK(resume(run).code == 0);
        }
        if (fs::exists(run + "/model.safetensors")) CHECK((modelOf(run) == expected));
      }
    }
  }
}

}  // namespace
}  // namespace cleave::test
