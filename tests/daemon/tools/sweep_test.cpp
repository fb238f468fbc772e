// Sweeps with real processes: a grid over cleave-link that is killed and resumed, failures, and
// Ctrl-C.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// The runs are so small that a point takes about a second.
Arguments sweep(const std::string& folder, const Arguments& more) {
  Arguments arguments = {"sweep",
                         "--config",
                         configFile("synthetic.yaml"),
                         "--folder",
                         folder,
                         "--set",
                         "data.train.size=256",
                         "--set",
                         "data.test.size=64",
                         "--set",
                         "train.epochs=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Process startSweep(const std::string& folder, const Arguments& more) {
  Arguments arguments = sweep(folder, more);
  arguments.insert(arguments.begin(), clientProgram());
  return Process::start(arguments);
}

const Arguments kGrid = {"--grid", "codec=none",        "--grid", "codec=block:bits=4",
                         "--grid", "link.latency=10ms", "--grid", "link.latency=40ms",
                         "--grid", "link.rate=1Gbit/s"};

// The start time of each point, by the name of its folder.
std::map<std::string, std::string> startTimes(const std::string& folder) {
  std::map<std::string, std::string> times;
  for (const CsvRow& row : readCsv(folder + "/results.csv")) {
    const auto environment =
        nlohmann::json::parse(readFile(folder + "/" + row.at("point") + "/environment.json"));
    times[row.at("point")] = environment.at("started").get<std::string>();
  }
  return times;
}

TEST_CASE("a killed sweep over the link resumes, and a finished sweep runs nothing") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path("sweep");
  {
    Process first = startSweep(folder, kGrid);
    REQUIRE(first.waitForOutput("point 3 of 4: ", kPatience));
    first.signal(SIGKILL);
    first.wait(kPatience);
  }
  const auto json = askJson(sweep(folder, with(kGrid, {"--dry-run"})));
  CHECK(json.at("points").at(1).at("status") == "done");
  CHECK(json.at("points").at(2).at("status") == "to do");

  const Ended ended = ask(sweep(folder, with(kGrid, {"--reference", "codec=none"})));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.errors.find("point 1 of 4") == std::string::npos);
  CHECK_THAT(
      ended.errors,
      Contains("point 3 of 4: codec=block:bits=4 link.latency=10ms link.rate=1Gbit/s; about ") &&
          Contains("point 4 of 4: done in "));
  CHECK_THAT(ended.output, Contains("speed-up") && Contains("block:bits=4  10ms"));

  const auto rows = readCsv(folder + "/results.csv");
  REQUIRE(rows.size() == 4);
  for (const CsvRow& row : rows) {
    CHECK(row.at("status") == "done");
    CHECK(std::stod(row.at("images_per_second")) > 0);
    CHECK(std::stod(row.at("speed_up")) > 0);
    checkFilesComplete(folder + "/" + row.at("point"));
    CHECK(std::filesystem::exists(folder + "/" + row.at("point") + "/server"));
    CHECK(std::filesystem::exists(folder + "/" + row.at("point") + "/report.html"));
  }
  // The link has the requested latency: a step crosses it four times.
  CHECK(rows[0].at("link.latency") == "10ms");
  CHECK(std::stod(rows[0].at("step_seconds")) > 0.04);
  CHECK(std::stod(rows[1].at("step_seconds")) > 0.16);
  CHECK(std::stod(rows[2].at("ratio")) < 0.3);
  CHECK(std::stod(rows[2].at("step_up_bytes")) < 0.3 * std::stod(rows[0].at("step_up_bytes")));
  CHECK(readCsv(folder + "/transfer_sizes.csv").size() >= 4 * 4);
  CHECK(readCsv(folder + "/groups.csv").size() == 4);
  CHECK(readCsv(folder + "/comparison.csv").empty());
  CHECK_THAT(readFile(folder + "/report.html"), Contains(rows[3].at("point")));

  const auto times = startTimes(folder);
  const auto again = askJson(sweep(folder, kGrid));
  CHECK(again.at("points").size() == 4);
  CHECK(startTimes(folder) == times);

  // A version before these keys existed stored the first point's configuration.
  const std::string result = folder + "/" + rows[0].at("point") + "/result.json";
  std::string stored = readFile(result);
  for (const std::string line : {"servers: []\\n", "insert: []\\n", "  holdout_from: random\\n"}) {
    const auto at = stored.find(line);
    REQUIRE(at != std::string::npos);
    stored.erase(at, line.size());
  }
  std::ofstream(result) << stored;
  askJson(sweep(folder, kGrid));
  CHECK(startTimes(folder) == times);
  // It held out the last samples.
  const std::string none = "  holdout: 0\\n";
  REQUIRE(stored.find(none) != std::string::npos);
  std::string heldOut = stored;
  std::ofstream(result) << heldOut.replace(heldOut.find(none), none.size(), "  holdout: 5\\n");
  checkError(ask(sweep(folder, with(kGrid, {"--set", "data.holdout=5", "--dry-run"}))), kWrongUse,
             {"[sweep-changed]", "'holdout_from: end' stored, 'holdout_from: random' now"});
  std::ofstream(result) << stored;

  const Ended other = ask(sweep(folder, {"--grid", "codec=none", "--dry-run"}));
  CHECK_THAT(other.output,
             Contains("1 point in") && Contains("4 points of another grid are also in"));

  checkError(
      ask(sweep(folder, with(kGrid, {"--set", "train.batch=64"}))), kWrongUse,
      {"[sweep-changed]",
       "was run with a different configuration: 'batch: 32' stored, 'batch: 64' now", "--folder"});
}

TEST_CASE("a killed sweep continues a point from its checkpoint") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path("sweep");
  const Arguments grid = {"--grid", "codec=none",        "--grid", "link.rate=1Gbit/s",
                          "--grid", "link.latency=10ms", "--set",  "checkpoint.every_steps=2",
                          "--set",  "train.epochs=4"};
  std::string point;
  {
    Process first = startSweep(folder, grid);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (point.empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::error_code none;  // ignores that there is no folder yet
      for (const auto& each : std::filesystem::directory_iterator(folder, none)) {
        const auto commits = each.path() / "checkpoints" / "commits.json";
        if (std::filesystem::exists(commits)) point = each.path().string();
      }
    }
    REQUIRE_FALSE(point.empty());
    first.signal(SIGKILL);
    first.wait(kPatience);
  }
  CHECK(std::filesystem::exists(point + ".plan.json"));
  const Ended ended = ask(sweep(folder, grid));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(readFile(point + "/summary.json"));
  CHECK(summary.at("resumes") == 1);
  CHECK(summary.at("steps") == 32);
  CHECK_FALSE(std::filesystem::exists(point + ".plan.json"));
  checkFilesComplete(point);
}

TEST_CASE("seeds are averaged, and a failed point is reported without ending the sweep") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path("sweep");
  const Arguments grid = {"--grid", "data.shape=[1, 8, 8]", "--grid", "run.seed=1",
                          "--grid", "run.seed=2",           "--grid", "data.holdout=0",
                          "--grid", "data.holdout=256",     "--set",  "model.width=16"};
  const Ended ended = ask(sweep(folder, grid));
  checkError(ended, kFailedRun,
             {"2 of 4 points failed", "[points-failed]", "rerun the same command"});
  CHECK_THAT(ended.output, Contains(" ± ") && Contains("cannot be held out of 256") &&
                               Contains("hint: set data.holdout"));
  std::size_t failed = 0;
  for (const CsvRow& row : readCsv(folder + "/results.csv")) {
    const bool good = row.at("data.holdout") == "0";
    failed += good ? 0 : 1;
    CHECK(row.at("status") == (good ? "done" : "failed"));
    CHECK(std::filesystem::exists(folder + "/" + row.at("point") + ".log") == !good);
  }
  CHECK(failed == 2);
  const auto groups = readCsv(folder + "/groups.csv");
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].at("seeds") == "2");
  CHECK_FALSE(groups[0].at("loss_std").empty());
  CHECK(groups[1].at("seeds") == "0");
}

TEST_CASE("Ctrl-C ends the point's processes and prints how to resume") {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path("sweep");
  Process process = startSweep(
      folder, {"--grid", "link.rate=1Gbit/s", "--set", "model={name: sleep, of: mlp, F1: 1, B1: 1}",
               "--set", "train.epochs=1000", "--set", "eval.every=0"});
  REQUIRE(process.waitForOutput("point 1 of 1: ", kPatience));
  std::string run;
  while (run.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string path = entry.path().string();
      if (std::filesystem::exists(path + "/steps.csv")) run = path;
    }
  }
  waitForSteps(run);
  const auto pid = nlohmann::json::parse(readFile(run + "/environment.json")).at("pid").get<int>();
  checkError(ask(sweep(folder, {"--grid", "codec=none"})), kWrongUse,
             {"[sweep-runs]", "another sweep is running in"});
  process.signal(SIGINT);
  checkError(finish(process), kFailedRun,
             {"[interrupted]", "interrupted; 0 of 1 points are done", "rerun the same command"});
  CHECK(::kill(pid, 0) != 0);  // it has exited
  checkFilesComplete(run);     // the client had time to finish cleanly
  CHECK(readCsv(folder + "/results.csv").at(0).at("status") == "to do");
}

TEST_CASE("a sweep works with --server and shows published figures") {
  const TemporaryFolder temporary;
  TestServer server(temporary);
  const std::string folder = temporary.path("sweep");
  const std::string header = readFile(configFile("experiments/reference.csv"));
  const std::string figures = temporary.path("figures.csv");
  std::string row = "mine,a test,report,an experiment,none,,my data,mlp,scratch,default,32,4,";
  row += "none,none,,12.5,,,,1,,,,,,,,,,\n";
  std::ofstream(figures) << header.substr(0, header.find('\n') + 1) + row;
  const auto json =
      askJson(sweep(folder, {"--grid", "codec=none", "--server", server.address(), "--figures",
                             figures, "--set", "known_as.data=my data"}));
  REQUIRE(json.at("comparison").size() == 2);
  CHECK(json.at("comparison").at(0).at("theirs").at("mean") == 12.5);
  // The bytes include headers and metadata.
  CHECK(json.at("comparison").at(1).at("ours").at("mean") == Approx(1.1).margin(0.09));
  server.stop();
  CHECK(server.runFolders().size() == 1);
}

TEST_CASE("errors of sweep have a hint") {
  const TemporaryFolder temporary;
  const Arguments shared = {clientProgram(), "sweep",
                            "--config",      configFile("synthetic.yaml"),
                            "--folder",      temporary.path("sweep")};
  checkMistakes(
      shared,
      {{"no grid", {}, kWrongUse, {"[no-grid]", "--grid is missing"}},
       {"no value", {"--grid", "codec"}, kWrongUse, {"is not KEY=VALUE"}},
       {"unknown key",
        {"--grid", "train.bath=3"},
        kWrongUse,
        {"[config-unknown-key]", "did you mean train.batch?"}},
       {"unknown codec",
        {"--grid", "codec=block:bit=4"},
        kWrongUse,
        {"--grid codec=block:bit=4", "bits"}},
       {"unknown link", {"--grid", "link.delay=3ms"}, kWrongUse, {"[bad-grid]", "the link has no"}},
       {"no unit",
        {"--grid", "link.rate=100"},
        kWrongUse,
        {"[bad-value]", "--grid link.rate=100", "unit"}},
       {"link set",
        {"--grid", "codec=none", "--set", "link.rate=1Gbit/s"},
        kWrongUse,
        {"[bad-grid]", "pass it as --grid link.rate=1Gbit/s"}},
       {"reference",
        {"--grid", "codec=none", "--reference", "codec=bf16"},
        kWrongUse,
        {"[bad-reference]", "--reference codec=bf16", "the grid has no such value", "codec=none"}},
       {"figures",
        {"--grid", "codec=none", "--figures", "nowhere.csv"},
        kWrongUse,
        {"[bad-figures]", "nowhere.csv is missing"}},
       {"no server",
        {"--grid", "codec=none", "--server", "127.0.0.1:1", "--set", "connect.retry_seconds=0"},
        kFailedRun,
        {"[points-failed]", "1 of 1 points failed"}}});
  checkError(ask({"report", temporary.path("sweep")}), kWrongUse,
             {"[no-run]", "is a sweep's folder", "report.html"});
  const Ended foreign = ask({"sweep", "--config", configFile("synthetic.yaml"), "--folder",
                             temporary.path(""), "--grid", "codec=none"});
  checkError(foreign, kWrongUse,
             {"[not-a-sweep]", "contains files other than those of a sweep", "--folder"});
}

}  // namespace
}  // namespace cleave::test
