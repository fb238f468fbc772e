// The server keeps initial weights, so that they are sent only once. This does not change results.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

const Arguments kWideRun = {"--set", "model.width=128", "--set", "threads={client: 1, server: 1}"};

// The files of weights that the server of `folder` keeps.
std::vector<std::string> storedIn(const TemporaryFolder& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder.path("store/local/.weights"), none)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  return files;
}

// The files are written while the run that sent the weights continues.
void waitForStored(const TemporaryFolder& folder, std::size_t count) {
  const auto start = std::chrono::steady_clock::now();
  while (storedIn(folder).size() < count) {
    REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(storedIn(folder).size() == count);
}

struct Run {
  std::string folder, serverFolder, log;
  std::size_t sent = 0;  // how many times the client has sent weights/body
  std::size_t received = 0;
  std::string model;
  std::map<std::string, std::string> losses;  // losses by phase and step
};

std::size_t weightsIn(const std::string& folder, const std::string& role) {
  std::size_t rows = 0;
  for (const CsvRow& row : readCsv(folder + "/transfers.csv")) {
    rows += row.at("flow") == "weights/body" && row.at("role") == role;
  }
  return rows;
}

// Trains, and returns the path of the final weights, from which other runs start.
std::string trainedWeights(const TemporaryFolder& folder, const std::string& address,
                           const std::string& seed = "1") {
  const std::string run = folder.path("first-" + seed);
  const Ended ended =
      runClient("train", run, with(kWideRun, {"--server", address, "--set", "run.seed=" + seed}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return run + "/model.safetensors";
}

// Trains from the given weights, and ends the server, so that its records are complete.
Run trainFrom(const TemporaryFolder& folder, TestServer& server, const std::string& weights,
              const std::string& name) {
  Run run;
  run.folder = folder.path(name);
  const Ended ended =
      runClient("train", run.folder,
                with(kWideRun, {"--server", server.address(), "--set", "weights.file=" + weights}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  server.stop();
  run.log = readFile(run.folder + "/log.txt") + ended.errors;
  for (const CsvRow& row : readCsv(run.folder + "/steps.csv")) {
    run.losses[row.at("phase") + " " + row.at("step")] = row.at("loss");
    run.serverFolder = server.runFolder(row.at("run"));
  }
  run.sent = weightsIn(run.folder, "send");
  run.received = weightsIn(run.serverFolder, "recv");
  run.model = readFile(run.folder + "/model.safetensors");
  return run;
}

void flipByteIn(const std::string& path) {
  std::string content = readFile(path);
  REQUIRE_FALSE(content.empty());
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

TEST_CASE("the body's initial weights are sent once, and the results are the same") {
  const TemporaryFolder folder;
  std::string weights;
  {
    const TestServer server(folder);
    weights = trainedWeights(folder, server.address());
    CHECK(storedIn(folder).empty());  // a run without a weights file sends none
  }
  TestServer first(folder);
  const Run sending = trainFrom(folder, first, weights, "sending");
  CHECK(sending.sent == 1);
  CHECK(sending.received == 1);
  CHECK_THAT(sending.log, !Contains("already has the body's weights"));
  waitForStored(folder, 1);

  first.stop();
  TestServer second(folder);  // another server process with the same store
  const Run stored = trainFrom(folder, second, weights, "stored");
  CHECK(stored.sent == 0);
  CHECK(stored.received == 0);
  CHECK_THAT(stored.log, Contains("the server already has the body's weights"));
  CHECK(stored.losses == sending.losses);
  CHECK(stored.model == sending.model);
  CHECK(storedIn(folder).size() == 1);

  // The folder of weights must not be taken for a run.
  const Ended listed = finish(Process::start(
      {serverProgram(), "runs", "list", "--json", "--set", "store=" + folder.path("store")}));
  REQUIRE(listed.code == 0);
  CHECK(nlohmann::json::parse(listed.output).size() == 3);
  CHECK_FALSE(fs::exists(folder.path("store/local/.weights/lock")));
}

TEST_CASE("the weights of an exported model are sent once") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "models.allow=[graph]"});
  const Arguments arguments = {"--server", server.address(), "--set",
                               "model={name: graph, file: " CLEAVE_SOURCE_DIR
                               "/tests/data/tiny.pt2, cuts: [conv, pool]}"};
  std::vector<double> sent;
  std::vector<std::string> models;
  for (const char* name : {"first", "second"}) {
    const std::string run = folder.path(name);
    const Ended ended = runClient("train", run, arguments);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    sent.push_back(sumOf(readCsv(run + "/transfers.csv"), "wire_bytes",
                         {{"flow", "weights/body"}, {"role", "send"}}));
    models.push_back(readTensors(run + "/model.safetensors"));
    waitForStored(folder, 1);
  }
  CHECK(sent.at(0) > 4 * 156);  // two layers of 8 and 148 parameters, and statistics
  CHECK(sent.at(1) == 0);
  CHECK(models.at(0) == models.at(1));
}

TEST_CASE("`verify` uses the weights that the server has stored") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string weights = trainedWeights(folder, server.address());
  const Arguments arguments =
      with(kWideRun, {"--server", server.address(), "--json", "--set", "weights.file=" + weights});
  for (const char* name : {"first", "second"}) {
    const Ended ended = runClient("verify", folder.path(name), arguments);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(nlohmann::json::parse(ended.output).at("equal") == true);
    waitForStored(folder, 1);
  }
  CHECK(weightsIn(folder.path("first"), "send") == 1);
  CHECK(weightsIn(folder.path("second"), "send") == 0);
}

TEST_CASE("damaged stored weights end the run, and are sent again by the next run") {
  const TemporaryFolder folder;
  std::string weights, expected;
  {
    TestServer server(folder);
    weights = trainedWeights(folder, server.address());
    expected = trainFrom(folder, server, weights, "sending").model;
    waitForStored(folder, 1);
  }
  flipByteIn(storedIn(folder).front());
  TestServer server(folder);
  const Ended ended =
      runClient("train", folder.path("damaged"),
                with(kWideRun, {"--server", server.address(), "--set", "weights.file=" + weights}));
  checkError(ended, kFailedRun, {"[weights-damaged]", "rerun the command"});
  CHECK(storedIn(folder).empty());

  const Run again = trainFrom(folder, server, weights, "again");
  CHECK(again.sent == 1);
  CHECK(again.model == expected);
  waitForStored(folder, 1);
}

TEST_CASE("a server that may not keep weights receives them in each run") {
  const TemporaryFolder folder;
  TestServer keeping(folder);
  const std::string weights = trainedWeights(folder, keeping.address());
  const std::string expected = trainFrom(folder, keeping, weights, "kept").model;
  waitForStored(folder, 1);
  keeping.stop();

  // The server does not use weights that it has already stored either.
  const Arguments none = {"--set", "weights.keep_mib=0"};
  TestServer first(folder, none);
  const Run run = trainFrom(folder, first, weights, "first");
  CHECK(run.sent == 1);
  CHECK(run.model == expected);
  first.stop();

  fs::remove_all(folder.path("store/local/.weights"));
  TestServer second(folder, none);
  CHECK(trainFrom(folder, second, weights, "second").sent == 1);
  CHECK_FALSE(fs::exists(folder.path("store/local/.weights")));
}

TEST_CASE("weights that do not fit on the server's disk are not kept, and the run continues") {
  const TemporaryFolder folder;
  TestServer server(folder, {}, "store", {"/usr/bin/env", "CLEAVE_FAIL=weights:1:enospc"});
  const std::string weights = trainedWeights(folder, server.address());
  const Run run = trainFrom(folder, server, weights, "run");
  CHECK(storedIn(folder).empty());
  CHECK_THAT(readFile(run.serverFolder + "/log.txt"), Contains("are not kept for other runs"));

  server.stop();
  TestServer next(folder);
  CHECK(trainFrom(folder, next, weights, "next").sent == 1);
  waitForStored(folder, 1);
}

}  // namespace
}  // namespace cleave::test
