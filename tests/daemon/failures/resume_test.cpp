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
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "common/checkpoint/run_connections.h"
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
                      const std::string& place = "committed:4:kill", const Arguments& more = {}) {
  const Process client =
      startClient("train", run, with(with(kRun, more), {"--server", address}), failingAt(place));
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

// The client's checkpoints and the server's are in the same form.
std::string serverFolder(const TemporaryFolder& folder, const std::string& run) {
  const auto record = nlohmann::json::parse(readFile(run + "/run.json"));
  return folder.path("store/local/" + record.at("run").get<std::string>());
}

using ByEpoch = std::map<std::string, std::vector<std::string>>;

// The values of an epoch in these columns. If an epoch has several rows, the last one counts.
ByEpoch valuesByEpoch(const std::string& run, const std::vector<std::string>& columns) {
  ByEpoch values;
  for (const CsvRow& row : readCsv(run + "/epochs.csv")) {
    std::vector<std::string>& each = values[row.at("epoch")];
    each.clear();
    for (const std::string& column : columns) each.push_back(row.at(column));
  }
  return values;
}

ByEpoch lossesByEpoch(const std::string& run) {
  return valuesByEpoch(run, {"train_loss", "eval_loss"});
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
       {"batch:1:kill", "batch:3:kill", "batch:17:kill", "snapshot:1:kill", "snapshot:2:kill",
        "checkpoint-state:2:kill", "checkpoint-record:2:kill", "checkpoint-written:2:kill",
        "commit:2:kill", "committed:2:kill", "sync:6:kill", "rename:9:kill", "connections:1:kill",
        "summary:1:kill", "done:1:kill"}) {
    INFO(place);
    const std::string run = folder.path("run" + std::to_string(++number));
    const Process client =
        startClient("train", run, with(kRun, {"--server", server.address()}), failingAt(place));
    REQUIRE(client.wait(kPatience));
    if (place == "committed:2:kill") {
      const Process killed = startResume(run, {}, failingAt("restore:1:kill"));
      CHECK(killed.wait(kPatience) == 128 + SIGKILL);
    }
    const Ended ended = resume(run);
    INFO(ended.errors);
    if (ended.code == 2) {
      CHECK_THAT(place, Catch::StartsWith("summary") || Catch::StartsWith("done"));
      CHECK_THAT(ended.errors, Contains("[run-done]"));
    } else {
      REQUIRE(ended.code == 0);
      CHECK(lossesByEpoch(run) == lossesByEpoch(folder.path("undisturbed")));
      CHECK(lossesByStep(run) == lossesByStep(folder.path("undisturbed")));
    }
    CHECK((modelOf(run) == expected));
  }
}

TEST_CASE("a resume that fails early keeps the newer weights of the earlier process") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string run = folder.path("run"), file = run + "/model.partial.safetensors";
  // Batch 16 is step 15, in the middle of an epoch. The last checkpoint is of step 10 or earlier.
  const Arguments more =
      with(kRun, {"--server", server.address(), "--set", "checkpoint.every_steps=5"});
  const Ended first = finish(startClient("train", run, more, failingAt("batch:16:eio")));
  INFO(first.errors);
  REQUIRE(first.code == 1);
  REQUIRE_THAT(first.errors, Contains("model.partial.safetensors has head and tail after "));
  const std::string newest = readFile(file);
  // From any of its checkpoints, this ends at a step of which no model is saved.
  const Ended second = finish(startResume(run, {}, failingAt("batch:2:eio")));
  INFO(second.errors);
  REQUIRE(second.code == 1);
  CHECK_THAT(second.errors, Contains(" is not saved, because that of a later step is"));
  CHECK((readFile(file) == newest));
  REQUIRE(resume(run).code == 0);
  CHECK_FALSE(fs::exists(file));  // the whole model is newer
}

TEST_CASE("a resume waits for a server that is down as long as a new run does") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  server.kill();
  const Ended ended = resume(run, {"--set", "connect.retry_seconds=1"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("error [no-server]") && Contains("; tried for 1 s") &&
                               Contains("for 1 s more") && !Contains("for 600 s"));
}

TEST_CASE("resumes are also counted if the next process is killed before its first checkpoint") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  for (int i = 0; i < 2; ++i) {
    const Process killed = startResume(run, {}, failingAt("batch:2:kill"));
    REQUIRE(killed.wait(kPatience) == 128 + SIGKILL);
  }
  bool isDamaged = false;
  SECTION("the count is kept") {}
  SECTION("a damaged count does not end the run") {
    fs::resize_file(run + "/resumes.json", 20);
    isDamaged = true;
  }
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(readFile(run + "/summary.json"));
  CHECK(summary.at("resumes") == (isDamaged ? 1 : 3));
  // A process that is killed early may have lost the row of its only step.
  if (!isDamaged) CHECK(summary.at("steps_redone") > 0);

  // The report has the numbers that `train` printed. Without the summary, those of the rows omit
  // the lost steps too.
  const auto headline = [&] {
    return askJson({"report", run, "--output", folder.path("report.html")})
        .at("runs")
        .at(0)
        .at("headline");
  };
  for (const char* key : {"seconds", "bytes_up", "bytes_down", "ratio", "images_per_second",
                          "mean_up_bytes_per_second", "mean_down_bytes_per_second"}) {
    INFO(key);
    CHECK(headline().at(key) == summary.at(key));
  }
  fs::remove(run + "/summary.json");
  constexpr double kRounding = 0.001;  // the times in the rows have milliseconds
  CHECK(headline().at("seconds").get<double>() <= summary.at("seconds").get<double>() + kRounding);
  CHECK(headline().at("ratio").get<double>() ==
        Approx(summary.at("ratio").get<double>()).epsilon(0.01));
}

TEST_CASE("with staleness, a killed client or server repeats the steps that were in progress") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const Arguments stale = {"--set", "train.staleness=2", "--set", "codec=block:bits=8"};
  const std::string expected = expectedModel(folder, server.address(), stale);
  int number = 0;
  for (const std::string place : {"snapshot:2:kill", "committed:4:kill", "batch:17:kill"}) {
    CAPTURE(place);
    const std::string run = folder.path("run" + std::to_string(++number));
    trainUntilKilled(run, server.address(), place, stale);
    const Ended ended = resume(run);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK((modelOf(run) == expected));
    CHECK(lossesByStep(run) == lossesByStep(folder.path("undisturbed")));
  }
}

// Codecs with a memory, in both directions.
const Arguments kChangeCodecs = {
    "--set",
    "codec={activation/0: 'delta(block:bits=4)', gradient/0: 'power:rank=2', "
    "activation/1: 'zstd:level=1(delta:skip=0.05(block:bits=2))', gradient/1: "
    "'power:rank=1'}",
    "--set", "model={name: small_cnn, width: 4}"};

const Arguments kDelta = {"--set", "codec={activation/0: 'delta(block:bits=4)'}"};

TEST_CASE("kept samples and factors are restored after a killed client or server") {
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
  trainThroughKills(server, {"batch:17:kill"}, run,
                    with(with(kRun, kChangeCodecs), {"--server", server.address()}));
  CHECK((modelOf(run) == expected));
}

TEST_CASE("kept samples in files give the same results as in memory, also after a kill") {
  const TemporaryFolder folder;
  const Arguments onDisk = {"--set", "kept_samples.on_disk=true"};
  std::string expected;
  {
    RestartableServer inMemory(folder);
    expected = expectedModel(folder, inMemory.address(), kChangeCodecs);
  }
  RestartableServer server(folder, onDisk);
  const std::string run = folder.path("run");
  trainThroughKills(server, {"batch:17:kill"}, run,
                    with(with(with(kRun, kChangeCodecs), onDisk), {"--server", server.address()}));
  CHECK((modelOf(run) == expected));
  const std::string killed = folder.path("killed");
  trainUntilKilled(killed, server.address(), "committed:4:kill", with(kChangeCodecs, onDisk));
  const Ended ended = resume(killed);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((modelOf(killed) == expected));
}

TEST_CASE("a disk without room for kept samples ends the run, or only its checkpoints") {
  const TemporaryFolder folder;
  const Arguments onDisk = {"--set", "kept_samples.on_disk=true"};
  const Arguments arguments = with(with(kRun, kDelta), onDisk);
  {
    const TestServer server(folder);
    const Process client =
        startClient("train", folder.path("first"), with(arguments, {"--server", server.address()}),
                    failingAt("reserve:1:enospc"));
    CHECK(client.wait(kPatience) == 1);
    CHECK_THAT(client.errors(), Contains("for kept samples cannot be reserved"));
  }
  // The second file is the copy for the first checkpoint. The default of checkpoint.on_failure is
  // to continue.
  const TestServer server(folder, onDisk, "failing", failingAt("reserve:2:enospc"));
  const std::string run = folder.path("second");
  const Ended ended = runClient("train", run, with(arguments, {"--server", server.address()}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("for kept samples cannot be reserved"));
}

TEST_CASE("kept samples in a server's files count towards the share of the disk") {
  const TemporaryFolder folder;
  const TestServer server(folder,
                          {"--set", "kept_samples.on_disk=true", "--set", "limits.disk_mib=12"});
  // 2,048 samples of 4 KiB, twice: for their file and for a copy.
  const Arguments wide = {"--server", server.address(),
                          "--set",    "data.train.size=2048",
                          "--set",    "model={name: mlp, width: 1024}",
                          "--set",    "codec=block:bits=8",
                          "--set",    "checkpoint.every_steps=0",
                          "--set",    "checkpoint.every_seconds=0",
                          "--set",    "train.max_steps=5"};
  const Ended small = runClient("train", folder.path("none"), with(kRun, wide));
  INFO(small.errors);
  CHECK(small.code == 0);
  const Ended refused = runClient("train", folder.path("run"), with(with(kRun, wide), kDelta));
  CHECK(refused.code == 1);
  CHECK_THAT(refused.errors, Contains("[disk-share-full]"));
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
  // The second snapshot is made after the first checkpoint is committed, so there is one to
  // restore.
  const std::vector<std::vector<std::string>> places = {{"batch:2:kill"},
                                                        {"snapshot:2:kill", "restore:1:kill"},
                                                        {"snapshot:2:kill"},
                                                        {"checkpoint-state:2:kill"},
                                                        {"checkpoint-record:2:kill"},
                                                        {"checkpoint-written:2:kill"},
                                                        {"rename:9:kill"}};
  for (const std::vector<std::string>& killedAt : places) {
    CAPTURE(killedAt);
    const std::string run = folder.path("run" + std::to_string(++number));
    trainThroughKills(server, killedAt, run, with(kRun, {"--server", server.address()}));
    CHECK((modelOf(run) == expected));
    CHECK_THAT(readFile(run + "/log.txt"), Contains("; reconnecting for up to "));
    CHECK(lossesByEpoch(run) == lossesByEpoch(folder.path("undisturbed")));
  }
  server.server().stop();  // writes the last rows
  const auto stepsByEpoch = [&](const std::string& run) {
    return valuesByEpoch(serverFolder(folder, run), {"steps", "samples"});
  };
  for (; number > 0; --number) {
    CHECK(stepsByEpoch(folder.path("run" + std::to_string(number))) ==
          stepsByEpoch(folder.path("undisturbed")));
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
      const std::string file = newestCheckpoint(atServer ? serverFolder(folder, run) : run);
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
  fs::remove_all(serverFolder(folder, run));
  server.start();
  const Ended refused = resume(run);
  CHECK(refused.code == 1);
  CHECK_THAT(refused.errors, Contains("[no-checkpoint]") && Contains("--from-start"));
  const Ended ended = resume(run, {"--from-start"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((modelOf(run) == expected));
}

TEST_CASE("only one client can resume a run, the last one that takes it over") {
  const TemporaryFolder folder;
  const RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address());
  const std::string copy = folder.path("copy");
  fs::copy(run, copy, fs::copy_options::recursive);

  // While one client uses the folder, another client is refused.
  Process first = startResume(run, {"--take-over", "--set", "train.epochs=100000", "--set",
                                    "eval.every=0", "--set", "checkpoint.every_steps=100000"});
  REQUIRE(first.waitForOutput(": connected to ", kPatience));
  const Ended second = resume(run);
  CHECK(second.code == 1);
  CHECK_THAT(second.errors, Contains("[run-in-use]"));
  first.signal(SIGKILL);
  REQUIRE(first.wait(kPatience));

  // The copied folder cannot continue it, however often it tries.
  for (int i = 0; i < 5; ++i) {
    const Ended copied = resume(copy);
    CHECK(copied.code == 1);
    CHECK_THAT(copied.errors, Contains("[stale-generation]") && Contains("--take-over"));
  }

  // It can take the run over, even if its own connections are lost, or the server's generation is
  // far ahead.
  fs::resize_file(copy + "/connections", 0);
  SECTION("the server's generation is near") {}
  SECTION("the server's generation is far ahead") {
    const std::string stored = serverFolder(folder, run) + "/connections";
    const std::string before = readFile(stored);
    std::ofstream(stored) << kMaxGeneration - 1 << before.substr(before.find('\n'));
  }
  const Ended damaged = resume(copy);
  CHECK(damaged.code == 1);
  CHECK_THAT(damaged.errors, Contains("[bad-checkpoint]") && Contains("--take-over"));
  const Ended taken = resume(copy, {"--take-over"});
  INFO(taken.errors);
  REQUIRE(taken.code == 0);
  CHECK((modelOf(copy) == expected));
  // The other folder cannot, however often it tries.
  for (int i = 0; i < 4; ++i) CHECK_THAT(resume(run).errors, Contains("[stale-generation]"));
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
    CHECK_THAT(other.errors,
               Contains(std::string(setting).substr(0, std::string(setting).find('='))));
  }
  // The run is no longer than what it has done.
  const Ended shorter = resume(run, {"--set", "train.max_steps=1"});
  CHECK(shorter.code == 2);
  CHECK_THAT(shorter.errors, Contains("train.max_steps gives the run 1 step, but it has already"));
  // A flipped bit of the learning rate, which --set may change.
  const std::string config = readFile(run + "/config.yaml");
  std::string flipped = config;
  const std::size_t peak = flipped.find("peak: 0.05");
  REQUIRE(peak != std::string::npos);
  flipped[peak + 9] = '4';
  std::ofstream(run + "/config.yaml") << flipped;
  CHECK_THAT(resume(run).errors, Contains("[other-run-spec]"));
  std::ofstream(run + "/config.yaml") << config;

  // A checkpoint that was computed elsewhere.
  for (const std::string& side : {run, serverFolder(folder, run)}) {
    const std::string record = fs::path(newestCheckpoint(side)).replace_extension(".json");
    const std::string before = readFile(record);
    auto json = nlohmann::json::parse(before);
    json.at("fingerprint") = "another machine";
    std::ofstream(record) << json.dump();
    const Ended inexact = resume(run);
    CHECK(inexact.code == 2);
    CHECK_THAT(inexact.errors, Contains("[inexact]") && Contains("--allow-inexact"));
    if (side == run) std::ofstream(record) << before;
  }
  CHECK(resume(run, {"--allow-inexact"}).code == 0);
  const Ended done = resume(run);
  CHECK(done.code == 2);
  CHECK_THAT(done.errors, Contains("[run-done]"));
}

const Arguments kConstant = {"--set", "train.learning_rate={schedule: constant, peak: 0.01}"};

TEST_CASE("a target in percent is trained with a warning") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("run"),
                with(kRun, {"--set", "train.max_steps=1", "--set", "eval.target=90"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("eval.target.value is 90, which top1 never reaches") &&
                               Contains("for 90 %, set it to 0.9"));
}

TEST_CASE("a finished run that gets more epochs ends with the weights of a run that had them") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const Arguments address = {"--server", server.address()};
  const Arguments four = {"--set", "train.epochs=4"}, two = {"--set", "train.epochs=2"};
  const Arguments target = {"--set", "eval.target={metric: loss, value: 100}"};
  const std::string expected =
      expectedModel(folder, server.address(), with(with(kConstant, four), target));
  const std::string run = folder.path("run");
  const Ended first =
      runClient("train", run, with(with(with(with(kRun, kConstant), two), address), target));
  INFO(first.errors);
  REQUIRE(first.code == 0);
  const auto reached = summaryOf(run).at("target");
  CHECK(reached.at("epoch") == 1);
  CHECK(reached.at("steps") == 8);
  CHECK(reached.at("bytes") > 0);
  CHECK_THAT(resume(run, two).errors, Contains("[run-done]") && Contains("N greater than 2"));
  CHECK_THAT(resume(run).errors, Contains("[run-done]") && Contains("--set train.epochs=N"));

  // Nothing but the files is left of the run.
  server.kill();
  server.start();
  const Ended ended = resume(run, four);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((modelOf(run) == expected));
  CHECK(lossesByStep(run) == lossesByStep(folder.path("undisturbed")));
  CHECK(lossesByEpoch(run) == lossesByEpoch(folder.path("undisturbed")));
  CHECK(summaryOf(run).at("steps") == 32);
  CHECK(summaryOf(run).at("target") == reached);
  CHECK(nlohmann::json::parse(readFile(run + "/changes.json")) == nlohmann::json::parse(R"(
      [{"step": 16, "key": "train.epochs", "before": "2", "after": "4"}])"));
  CHECK_THAT(readFile(run + "/config.yaml"), Contains("epochs: 4"));

  // Without the server's checkpoint, it cannot.
  for (const auto& entry : fs::directory_iterator(serverFolder(folder, run) + "/checkpoints")) {
    fs::remove(entry);
  }
  const Ended refused = resume(run, {"--set", "train.epochs=6"});
  CHECK(refused.code == 1);
  CHECK_THAT(refused.errors, Contains("[no-checkpoint]") &&
                                 Contains("--set weights.file=" + run + "/model.safetensors"));
  CHECK(fs::exists(run + "/summary.json"));  // the run is still done
}

// Two ways to compute a run: without loss, and with steps that overlap.
const std::vector<Arguments> kWays = {
    {"--set", "codec=none"}, {"--set", "codec=block:bits=8", "--set", "train.staleness=2"}};

TEST_CASE("a finished run with codec none, or whose steps overlap, gets more epochs") {
  for (const Arguments& way : kWays) {
    INFO(way.back());
    const TemporaryFolder folder;
    const RestartableServer server(folder);
    const Arguments two = {"--set", "train.epochs=2"};
    const std::string expected =
        expectedModel(folder, server.address(), with(with(kConstant, way), two));
    const std::string run = folder.path("run");
    const Arguments one = {"--server", server.address(), "--set", "train.epochs=1"};
    REQUIRE(runClient("train", run, with(with(kRun, with(kConstant, way)), one)).code == 0);
    const Ended ended = resume(run, two);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(summaryOf(run).at("steps_redone") == 0);
    CHECK((modelOf(run) == expected));
  }
}

// Each step is due for a checkpoint, so one is in progress when train.stop ends the run.
TEST_CASE("a run that train.stop has ended gets more epochs, also if its steps overlap") {
  for (const Arguments& way : kWays) {
    INFO(way.back());
    const TemporaryFolder folder;
    const RestartableServer server(folder);
    const Arguments run =
        with(with(kRun, with(kConstant, way)),
             {"--server", server.address(), "--set", "checkpoint.every_steps=1", "--set",
              "train.stop={metric: loss, patience: 1, min_change: 1000}"});
    const Arguments longer = {"--set", "train.epochs=4", "--set", "train.stop.patience=9"};
    REQUIRE(runClient("train", folder.path("undisturbed"), with(run, longer)).code == 0);
    const std::string stopped = folder.path("run");
    const Ended first = runClient("train", stopped, run);
    INFO(first.errors);
    REQUIRE(first.code == 0);
    REQUIRE(summaryOf(stopped).at("steps") == 16);
    const std::string summary = readFile(stopped + "/summary.json");
    for (const char* setting : {"device=cpu", "train.clip_norm=1", "train.epochs=19"}) {
      const Ended same = resume(stopped, {"--set", setting});
      CHECK(same.code == 2);
      CHECK_THAT(same.errors, Contains("[run-done]") &&
                                  Contains("--set train.stop.patience=N, with N greater than 1"));
    }
    CHECK(readFile(stopped + "/summary.json") == summary);
    CHECK_THAT(first.errors, Contains("loss has not improved in 1 evaluations, so the run ends"));
    const Ended ended = resume(stopped, longer);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(summaryOf(stopped).at("steps") == 32);
    CHECK(summaryOf(stopped).at("steps_redone") == 0);
    checkSameModel(folder.path("undisturbed"), stopped);
  }
}

TEST_CASE("a run with its own server gets more epochs, and says what becomes of its schedule") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const Ended first = runClient("train", run, {"--set", "train.epochs=1"});
  INFO(first.errors);
  REQUIRE(first.code == 0);
  // As an earlier version, without data.holdout_from, wrote it.
  const std::string config = readFile(run + "/config.yaml");
  std::ofstream(run + "/config.yaml")
      << std::regex_replace(config, std::regex("\n *holdout_from: [a-z]+"), "");
  REQUIRE(readFile(run + "/config.yaml") != config);
  auto record = nlohmann::json::parse(readFile(run + "/run.json"));
  record.at("config") = "";
  std::ofstream(run + "/run.json") << record.dump();
  const Ended ended = resume(run, {"--set", "train.epochs=2", "--set", "train.clip_norm=1"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(rowsOf(run, "train") == 16);
  CHECK_THAT(ended.errors, Contains("the schedule cosine now spans 16 steps"));
  const auto changes = nlohmann::json::parse(readFile(run + "/changes.json"));
  CHECK(changes.size() == 2);
  CHECK_THAT(readFile(run + "/log.txt"), Contains("train.clip_norm changes from 0.0 to 1.0"));
}

// Runs `cleave-server runs`.
Ended runs(const TemporaryFolder& folder, const Arguments& arguments) {
  return finish(Process::start(with(with({serverProgram(), "runs"}, arguments),
                                    {"--json", "--set", "store=" + folder.path("store")})));
}

TEST_CASE("checkpoints and stored runs are listed, and a run is removed unless it is in use") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string run = folder.path("run");
  trainUntilKilled(run, server.address(), "committed:8:kill", {"--set", "train.epochs=200"});
  const std::string stored = serverFolder(folder, run);
  const std::string id = fs::path(stored).filename();
  auto list = askJson({"checkpoints", run});
  REQUIRE(list.size() == 2);
  const std::uint64_t newest = list[0].at("step");
  CHECK(newest > list[1].at("step").get<std::uint64_t>());
  CHECK(list[0].at("intact") == true);
  CHECK(list[1].at("intact") == true);
  // The client was killed before it removed the third checkpoint. The server removes it at the
  // next.
  for (const std::string& side : {run, stored}) {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(side + "/checkpoints")) {
      count += entry.path().extension() == ".safetensors" ? 1 : 0;
    }
    CHECK(count == 3);
  }
  flipByteIn(newestCheckpoint(run));
  list = askJson({"checkpoints", run});
  CHECK(list[0].at("intact") == false);
  CHECK(list[1].at("intact") == true);

  // The server keeps the run for its client.
  const auto listed = nlohmann::json::parse(runs(folder, {"list"}).output);
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].at("run") == id);
  CHECK(listed[0].at("identity") == "local");
  CHECK(listed[0].at("checkpoint") == newest);
  CHECK(listed[0].at("in_use") == true);
  checkError(runs(folder, {"remove", id}), kFailedRun, {"[run-in-use]"});
  CHECK(nlohmann::json::parse(runs(folder, {"remove", "--older", "0h"}).output).empty());
  server.kill();
  checkError(runs(folder, {"remove", id, "--identity", "bob"}), kWrongUse, {"[no-run]"});
  CHECK(nlohmann::json::parse(runs(folder, {"remove", "--older", "1h"}).output).empty());
  fs::copy(stored, folder.path("store/local/other"), fs::copy_options::recursive);
  CHECK(nlohmann::json::parse(runs(folder, {"remove", id}).output).at(0).at("run") == id);
  CHECK_FALSE(fs::exists(stored));
  const Ended older = runs(folder, {"remove", "--older", "0h"});
  CHECK(nlohmann::json::parse(older.output).at(0).at("run") == "other");
  CHECK(nlohmann::json::parse(runs(folder, {"list"}).output).empty());
}

// A copy of a killed run on both sides, with another run id, so that all of them can be resumed.
std::string copyOf(const TemporaryFolder& folder, const std::string& run, const std::string& name) {
  const std::string copy = folder.path(name);
  fs::copy(run, copy, fs::copy_options::recursive);
  auto record = nlohmann::json::parse(readFile(run + "/run.json"));
  record.at("run") = name;
  std::ofstream(copy + "/run.json") << record.dump(2);
  fs::copy(serverFolder(folder, run), serverFolder(folder, copy), fs::copy_options::recursive);
  return copy;
}

TEST_CASE(
    "after damage to any file of a run, it ends with the same weights or reports the damage") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const std::string expected = expectedModel(folder, server.address());
  const std::string run = folder.path("run");
  // The fewer steps are left, the shorter is this test.
  trainUntilKilled(run, server.address(), "batch:170:kill");
  server.kill();
  server.start();
  struct Damage {
    std::vector<std::string> client, server;  // damaged files
    std::string code;                         // of the error; empty: none
    Arguments repair;                         // options with which the run continues; empty: none
  };
  const std::vector<std::string> records = {"steps.csv", "transfers.csv", "epochs.csv",
                                            "environment.json"};
  const std::vector<Damage> table = {
      {records, with(records, {"config.yaml", "log.txt"}), "", {}},
      {{"run.json"}, {}, "no-run", {}},
      {{"config.yaml"}, {}, "other-run-spec", {}},
      {{"connections"}, {}, "bad-checkpoint", {"--take-over"}},
      {{"checkpoints/commits.json", "checkpoints/commits.copy.json"},
       {},
       "bad-checkpoint",
       {"--from-start"}},
      {{}, {"connections"}, "bad-checkpoint", {}},
  };
  int number = 0;
  for (const Damage& damage : table) {
    for (const bool isCut : {true, false}) {
      const std::string copy = copyOf(folder, run, "copy" + std::to_string(++number));
      CAPTURE(damage.client, damage.server, isCut);
      const auto damageIn = [&](const std::string& side, const std::vector<std::string>& files) {
        for (const std::string& file : files) {
          const std::string path = side + "/" + file;
          isCut ? fs::resize_file(path, fs::file_size(path) / 2) : flipByteIn(path);
        }
      };
      damageIn(serverFolder(folder, copy), damage.server);
      damageIn(copy, damage.client);
      const Ended ended = resume(copy);
      INFO(ended.errors);
      // A flipped bit can also give another valid name or number.
      const std::string error = "error [" + (isCut ? damage.code : "");
      const bool mustEnd = damage.code.empty() || (!isCut && ended.code == 0);
      if (!mustEnd) {
        checkError(ended, ended.code == kFailedRun ? kFailedRun : kWrongUse, {error, "hint: "});
        if (damage.repair.empty()) continue;
        REQUIRE(resume(copy, damage.repair).code == 0);
      }
      REQUIRE(fs::exists(copy + "/summary.json"));
      CHECK((modelOf(copy) == expected));
    }
  }
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
  CHECK_THAT(interrupted.errors,
             Contains("hint: to continue, run: cleave-client train --resume " + run + "\n"));
  const Ended ended = resume(run);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(rowsOf(run, "train") == 800);
}

TEST_CASE("a restarted server loses no step") {
  const TemporaryFolder folder;
  RestartableServer server(folder);
  const Arguments longer = {"--set", "train.epochs=60"};
  const std::string expected = expectedModel(folder, server.address(), longer);
  const std::string run = folder.path("run");
  // There are no periodic checkpoints.
  const Process client =
      startClient("train", run,
                  with(with(kRun, longer),
                       {"--server", server.address(), "--set", "checkpoint.every_steps=100000"}));
  waitForSteps(run);
  restartWithoutLoss(server, client, run);
  CHECK((modelOf(run) == expected));
}

// A run with one epoch of 8 steps and an evaluation that takes several seconds.
Process startLongEvaluation(const std::string& run, const std::string& address) {
  return startClient("train", run,
                     with(kRun, {"--server", address, "--set", "checkpoint.every_steps=100000",
                                 "--set", "train.epochs=1", "--set", "eval.batch=1", "--set",
                                 "model={name: sleep, of: mlp, F1: 60, B1: 1}"}));
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
