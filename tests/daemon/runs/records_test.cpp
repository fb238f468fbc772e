// The guarantees of the CSV files (docs/metrics.md), tested with programs that are running and
// programs that are killed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

// Converts a time such as "2026-01-31T12:34:56.789Z" to seconds since 1970.
double secondsOf(const std::string& time) {
  std::tm utc{};
  const char* rest = ::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  REQUIRE(rest != nullptr);
  REQUIRE(std::string(rest).size() == 5);
  REQUIRE(std::string(rest).back() == 'Z');
  return static_cast<double>(::timegm(&utc)) + std::stod(rest);
}

double secondsNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The complete rows of a file that is still being written, or whose writer was killed. An
// incomplete last line is ignored.
std::vector<CsvRow> readWholeRows(const TemporaryFolder& folder, const std::string& path) {
  const std::string text = readFile(path);
  const std::string copy = folder.path("copy.csv");
  std::ofstream(copy, std::ios::binary) << text.substr(0, text.rfind('\n') + 1);
  return readCsv(copy);
}

void checkCounted(const std::vector<CsvRow>& steps) {
  std::uint64_t next = 1;
  for (const CsvRow& row : steps) {
    if (row.at("phase") == "train") CHECK(row.at("step") == std::to_string(next++));
  }
  CHECK(next > 10);
}

// Checks the files of a program that was killed at the given time.
void checkKept(const TemporaryFolder& folder, const std::string& run, double killed) {
  constexpr double kMaxLost = 1.0;  // seconds
  constexpr double kBusy = 1.0;     // seconds until a busy machine schedules the writing thread
  for (const char* file : {"/steps.csv", "/transfers.csv"}) {
    INFO(run + file);
    const auto rows = readWholeRows(folder, run + file);
    REQUIRE(!rows.empty());
    CHECK(killed - secondsOf(rows.back().at("time")) < kMaxLost + kBusy);
  }
  checkCounted(readWholeRows(folder, run + "/steps.csv"));
}

TEST_CASE("a killed program loses at most its last second of rows") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Process client = startSlowClient(folder.path("client"), server.address());
  waitForSteps(folder.path("client"));
  // The file is read while it is written: every line is complete, and none is missing.
  for (int reading = 0; reading < 20; ++reading) {
    checkCounted(readWholeRows(folder, folder.path("client/steps.csv")));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const double killed = secondsNow();
  client.signal(SIGKILL);
  server.process().signal(SIGKILL);
  finish(client);
  finish(server.process());
  checkKept(folder, folder.path("client"), killed);
  REQUIRE(server.runFolders().size() == 1);
  checkKept(folder, server.runFolders()[0], killed);
}

TEST_CASE("rotated files have all rows in order, and each file has the header") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "metrics.rotate=64kB"});
  const Ended ended = runClient("train", folder.path("client"),
                                {"--server", server.address(), "--set", "metrics.rotate=64kB",
                                 "--set", "train.epochs=8", "--json"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  server.stop();
  const std::string runs[] = {folder.path("client"),
                              server.runFolder(nlohmann::json::parse(ended.output).at("run"))};
  for (const std::string& run : runs) {
    INFO(run);
    std::vector<CsvRow> transfers;
    int files = 0;
    while (std::filesystem::exists(run + "/transfers." + std::to_string(files + 1) + ".csv")) {
      const std::string file = run + "/transfers." + std::to_string(++files) + ".csv";
      const auto rows = readCsv(file);
      CHECK(csvHeader(file) == csvHeader(run + "/transfers.csv"));
      transfers.insert(transfers.end(), rows.begin(), rows.end());
    }
    CHECK(files > 1);
    const auto last = readCsv(run + "/transfers.csv");
    transfers.insert(transfers.end(), last.begin(), last.end());
    CHECK(std::is_sorted(transfers.begin(), transfers.end(),
                         [](const auto& a, const auto& b) { return a.at("time") < b.at("time"); }));
    // All rows are present, because their bytes add up to the bytes counted in steps.csv.
    const auto steps = readCsv(run + "/steps.csv");
    double counted = 0;
    double recorded = 0;
    for (const char* column : {"wire_up_bytes", "wire_down_bytes"}) counted += sumOf(steps, column);
    for (const CsvRow& row : transfers) {
      if (row.at("flow") != "weights/body") recorded += std::stod(row.at("wire_bytes"));
    }
    CHECK(counted == recorded);
  }
}

}  // namespace
}  // namespace cleave::test
