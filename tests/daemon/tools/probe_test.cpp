// `cleave-client probe`, and training runs that probe first, with real servers behind a relay.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdint>
#include <sstream>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const std::vector<std::string> kColumns = {
    "time",  "run",    "session", "direction",        "both",
    "bytes", "repeat", "seconds", "receiver_seconds", "round_trip_seconds"};

TEST_CASE("probe measures each size up, down and both at once, and fits a line per direction") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string csv = folder.path("link.csv");
  const nlohmann::json json = askJson({"probe", "--server", server.address(), "--max-size", "1MB",
                                       "--repeat", "2", "--seconds", "60", "--csv", csv});
  CHECK(json.at("server") == server.address());
  CHECK(json.at("session") == 1);
  const double roundTrip = json.at("round_trip_seconds").get<double>();
  CHECK(roundTrip > 0);
  REQUIRE(json.at("sizes").size() == 4);
  CHECK(json.at("skipped").empty());
  std::uint64_t bytes = 1000;
  for (const nlohmann::json& size : json.at("sizes")) {
    CHECK(size.at("bytes") == bytes);
    bytes *= 10;
    for (const char* way : {"up", "down", "up_of_both", "down_of_both"}) {
      CHECK(size.at(std::string(way) + "_seconds").get<double>() > 0);
      CHECK(json.at("fit").at(way).at("latency_seconds").get<double>() >= 0);
      CHECK(json.at("fit").at(way).at("largest_deviation").get<double>() >= 0);
    }
  }
  CHECK_THAT(json.at("sentence").get<std::string>(),
             Contains("up ") && Contains(", down ") && Contains(" one way; the fit is within "));
  CHECK(csvHeader(csv) == kColumns);
  const auto rows = readCsv(csv);
  CHECK(rows.size() == 4 * 4 * 2);
  for (const CsvRow& row : rows) {
    CHECK(row.at("run").empty());
    CHECK(std::stod(row.at("seconds")) > 0);
    CHECK(std::stod(row.at("receiver_seconds")) >= 0);
  }
  CHECK(sumOf(rows, "bytes", {{"direction", "up"}, {"both", "0"}}) == 2 * 1'111'000);
  server.stop();
  CHECK(server.runFolders().empty());
}

TEST_CASE("probe starts its own server, and prints a table that fits 100 columns") {
  const Ended shown = ask({"probe", "--max-size", "100kB", "--repeat", "1"});
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("round trip ") && Contains("both at once") &&
                               Contains("1.00 kB |") && Contains("100 kB |") &&
                               Contains("the fit is within "));
  std::istringstream lines(shown.output);
  for (std::string line; std::getline(lines, line) && line.find("fit is") == std::string::npos;) {
    CHECK(line.size() <= 100);
  }
}

TEST_CASE("the link's latency shows in the round trip and in the fit") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Relay relay("127.0.0.1", server.port());
  relay.delay(std::chrono::milliseconds(20));  // a one-way delay of 20 to 40 ms
  const nlohmann::json json =
      askJson({"probe", "--server", "127.0.0.1:" + std::to_string(relay.port()), "--max-size",
               "10kB", "--seconds", "60"});
  const double roundTrip = json.at("round_trip_seconds").get<double>();
  CHECK(roundTrip >= 0.04);
  for (const char* way : {"up", "down"}) {
    CHECK(json.at("fit").at(way).at("latency_seconds").get<double>() > roundTrip / 4);
  }
}

TEST_CASE("sizes that would take too long are skipped and listed") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Relay relay("127.0.0.1", server.port());
  relay.delay(std::chrono::milliseconds(50));
  const Ended shown = ask({"probe", "--server", "127.0.0.1:" + std::to_string(relay.port()),
                           "--seconds", "1", "--max-size", "1GB"});
  INFO(shown.errors);
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("1.00 kB |") && Contains("skipped") &&
                               Contains("1.00 GB: would exceed the time limit (--seconds)"));
}

TEST_CASE("if a server's policy refuses probes, the error says so, and training still works") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "probe.allowed=false"});
  checkError(ask({"probe", "--server", server.address()}), kWrongUse,
             {"[probe-not-allowed]", "refuses: this server does not allow probes",
              "set probe.allowed to true"});
  checkError(runClient("train", folder.path("client"), {"--server", server.address(), "--probe"}),
             kWrongUse,
             {"[probe-not-allowed]", "does not allow probes", "or train without a probe"});
  CHECK(runClient("train", folder.path("plain"), {"--server", server.address()}).code == 0);
}

TEST_CASE("errors of probe have a hint") {
  checkMistakes(
      {clientProgram(), "probe"},
      {{"no server", {"--server", "127.0.0.1:1"}, kFailedRun, {"[no-server]", "cannot connect to"}},
       {"two servers", {"--server", "a:1+b:1"}, kWrongUse, {"[bad-address]", "give one address"}},
       {"no port", {"--server", "nowhere"}, kWrongUse, {"[bad-address]", "has no port"}},
       {"no unit", {"--max-size", "100"}, kWrongUse, {"[bad-value]", "--max-size: '100'", "unit"}},
       {"too much", {"--max-size", "2GB"}, kWrongUse, {"[bad-value]", "out of range", "1GB"}},
       {"too little", {"--max-size", "5B"}, kWrongUse, {"[bad-value]", "1kB"}},
       {"no repeats", {"--repeat", "0"}, kWrongUse, {"--repeat"}},
       {"no time", {"--seconds", "0"}, kWrongUse, {"--seconds"}}});
}

TEST_CASE("a probe counts as a session, and either side may end it") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.sessions=1"});
  Relay relay("127.0.0.1", server.port());
  relay.delay(
      std::chrono::milliseconds(50));  // a slow link, so that the probe does not end too soon
  Process probe = Process::start({clientProgram(), "probe", "--server",
                                  "127.0.0.1:" + std::to_string(relay.port()), "--repeat", "1000",
                                  "--max-size", "1kB", "--seconds", "300"});
  REQUIRE(server.process().waitForOutput("a probe of the link", kPatience));
  const auto start = std::chrono::steady_clock::now();
  while (relay.bytesUp() < 10'000) {
    REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  checkError(ask({"probe", "--server", server.address()}), kFailedRun,
             {"[too-many-sessions]", "already has its maximum of 1 sessions",
              "retry when a session has ended"});
  SECTION("Ctrl-C at the client") {
    probe.signal(SIGINT);
    checkError(finish(probe), kFailedRun, {"cleave-client: error [interrupted]: ", "rerun"});
    CHECK(server.process().waitForOutput("probe: ended: interrupted", kPatience));
    server.stop();
  }
  SECTION("Ctrl-C at the server") {
    server.process().signal(SIGINT);
    CHECK(finish(server.process()).code == 0);
    checkError(finish(probe), kFailedRun,
               {"[shutting-down]", "the server is shutting down", "restart the server"});
  }
}

TEST_CASE("a training run may probe first, and records the result") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string client = folder.path("client");
  const Ended ended =
      runClient("train", client,
                {"--server", server.address(), "--probe", "--set", "probe.seconds=2", "--json"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  CHECK(summary.at("probe").at("sizes").size() >= 1);
  CHECK(summary.at("probe").at("fit").contains("down_of_both"));
  CHECK(csvHeader(client + "/probe.csv") == kColumns);
  CHECK(readCsv(client + "/probe.csv").at(0).at("run") == summary.at("run"));
  CHECK_THAT(readFile(client + "/log.txt"), Contains("link: up "));
  CHECK_THAT(readFile(client + "/config.yaml"), Contains("first: true"));
  // The run is the server's second session, and its files do not include the probe's bytes.
  CHECK(readCsv(client + "/steps.csv").at(0).at("session") == "2");
}

}  // namespace
}  // namespace cleave::test
