// The statistics that a server reports about its runs to the operator, and their display.
#include <catch2/catch.hpp>
#include <sstream>

#include "server/status/status.h"
#include "server/status/status_table.h"
#include "server/status/throughput_meter.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;

// Simulates batches of 64 samples that each take `seconds`.
struct Run {
  ThroughputMeter pace;
  LinkTotals totals;
  SteadyTime time{};
  ActionSeconds actions{};
  std::uint64_t step = 0;
  double rateUp = 0, rateDown = 0;

  void batches(int count, double seconds, std::uint64_t up, std::uint64_t down,
               Phase phase = Phase::train) {
    for (int j = 0; j < count; ++j) {
      time +=
          std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(seconds));
      totals.wireUp += up;
      totals.wireDown += down;
      pace.finishedBatch({phase, ++step, 0, {4, 64}}, actions, totals, rateUp, rateDown, time);
    }
  }
};

TEST_CASE("the rates and shares of a steady run match its activity") {
  Run run;
  CHECK_FALSE(run.pace.state(run.time));
  run.actions[indexOf(ActionKind::bodyForward)] = 0.01;
  run.actions[indexOf(ActionKind::bodyBackward)] = 0.02;
  run.actions[indexOf(ActionKind::update)] = 0.005;
  run.actions[indexOf(ActionKind::headForward)] =
      9;  // an action of the client, which must be ignored
  run.rateUp = 1e7;
  run.rateDown = 2e7;
  run.batches(1, 0.1, 500'000, 800'000);
  REQUIRE(run.pace.state(run.time));
  CHECK(run.pace.state(run.time)->up == 0);  // there is no earlier batch to measure from
  run.batches(20, 0.1, 500'000, 800'000);
  const Throughput state = *run.pace.state(run.time + std::chrono::seconds(2));
  CHECK(state.step == 21);
  CHECK(state.samplesPerSecond == Approx(640));
  CHECK(state.up == Approx(5e6));
  CHECK(state.down == Approx(8e6));
  CHECK(state.shares.compute == Approx(0.35));
  CHECK(state.shares.up == Approx(0.5));
  CHECK(state.shares.down == Approx(0.4));
  CHECK(state.shares.codec == 0);
  CHECK(state.idleSeconds == Approx(2));
  CHECK(bottleneckOf(state.shares) == "uplink");
}

TEST_CASE("rates follow a change within seconds, and an evaluation has no training rate") {
  Run run;
  run.batches(20, 0.1, 500'000, 0);
  run.batches(20, 1, 500'000, 0);
  CHECK(run.pace.state(run.time)->up == Approx(5e5).epsilon(0.02));
  run.batches(20, 1, 500'000, 0, Phase::eval);
  CHECK(run.pace.state(run.time)->samplesPerSecond < 1);
  CHECK(run.pace.state(run.time)->phase == Phase::eval);
  CHECK(run.pace.state(run.time)->step == 40);  // the latest training step
}

TEST_CASE(
    "a resource that is busy half of the time is the bottleneck, otherwise client or latency") {
  CHECK(bottleneckOf({}) == "client or latency");
  CHECK(bottleneckOf({.compute = 0.49, .up = 0.3}) == "client or latency");
  CHECK(bottleneckOf({.compute = 0.9, .up = 0.6}) == "server compute");
  CHECK(bottleneckOf({.codec = 0.7}) == "codec");
  CHECK(bottleneckOf({.down = 0.8}) == "downlink");
}

nlohmann::ordered_json document() {
  return {{"software", "cleave 0.1.0"},
          {"pid", 42},
          {"address", "127.0.0.1:4800"},
          {"tls", true},
          {"device", "cpu"},
          {"uptime_seconds", 3723},
          {"shutting_down", false},
          {"connections", 3},
          {"max_sessions", 8},
          {"memory", {{"admitted_bytes", 2'000'000}, {"max_bytes", 8e9}, {"resident_bytes", 5e8}}},
          {"refusals", {{"bad-frame", 3}, {"unknown-identity", 1}}},
          {"sessions", nlohmann::ordered_json::array()},
          {"sessions_left_out", 0}};
}

TEST_CASE("a status says that nothing confines the models of clients") {
  ServerStatus status;
  CHECK(nlohmann::json::parse(statusJson(status)).at("unconfined") == "");
  status.unconfined = "seccomp: Invalid argument";
  const auto json = nlohmann::ordered_json::parse(statusJson(status));
  CHECK(json.at("unconfined") == "seccomp: Invalid argument");
  CHECK_THAT(statusTable(json, 0), Contains("models of clients are not confined "
                                            "(models.unconfined): seccomp: Invalid argument\n"));
}

TEST_CASE("a status without sessions has only the summary") {
  CHECK(statusTable(document(), 0) ==
        "cleave 0.1.0, process 42, at 127.0.0.1:4800 with TLS, on cpu, up for 1:02:03\n"
        "0 of 8 sessions, 3 connections; memory: 2.00 MB of 8.00 GB admitted, 500 MB resident\n"
        "refused or ended because of a client error: 3 bad-frame, 1 unknown-identity\n");
}

TEST_CASE("sessions are listed in aligned columns") {
  nlohmann::ordered_json status = document();
  nlohmann::ordered_json run = {{"session", 7},
                                {"identity", "clinic-a"},
                                {"from", "10.0.0.7:40000"},
                                {"seconds", 65},
                                {"kind", "run"},
                                {"run", "fashion-1"},
                                {"model", "mlp"},
                                {"memory_bytes", 2'000'000}};
  nlohmann::ordered_json going = run;
  going.update({{"session", 12},
                {"phase", "eval"},
                {"step", 1234},
                {"epoch", 3},
                {"images_per_second", 6485.4},
                {"up_bytes_per_second", 12.3e6},
                {"down_bytes_per_second", 4.5e6},
                {"bottleneck", "uplink"},
                {"busy_shares", {{"server_compute", 0.42}}},
                {"resident_bytes", 1'500'000},
                {"idle_seconds", 0.02}});
  nlohmann::ordered_json still = going;
  still["idle_seconds"] = 75;
  const nlohmann::ordered_json probe = {{"session", 13},
                                        {"identity", "local"},
                                        {"seconds", 1},
                                        {"from", "127.0.0.1:40001"},
                                        {"kind", "probe"}};
  status["sessions"] = {run, going, still, probe};
  status["sessions_left_out"] = 2;
  const std::string table = statusTable(status, 0);
  CHECK(sessionsTable(status, 0) == table.substr(table.find("\n\n") + 2));
  CHECK_THAT(table, Contains("6 of 8 sessions") && Contains("\nand 2 more\n") &&
                        Contains("(a probe of the link)"));
  std::istringstream lines(table.substr(table.find("\n\n") + 2));
  std::string head;
  std::getline(lines, head);
  const auto cell = [&](const std::string& line, const std::string& column) {
    return line.substr(head.find(column), line.find("  ", head.find(column)) - head.find(column));
  };
  std::string line;
  std::getline(lines, line);
  CHECK(cell(line, "step") == "-");
  CHECK(cell(line, "admitted") == "2.00 MB");
  CHECK(cell(line, "resident") == "-");
  std::getline(lines, line);
  CHECK(cell(line, "identity") == "clinic-a");
  CHECK(cell(line, "step") == "1234 (eval)");
  CHECK(cell(line, "samples/s") == "6485");
  CHECK(cell(line, "up") == "12.3 MB/s");
  CHECK(cell(line, "limited by") == "uplink");
  CHECK(cell(line, "busy") == "42 %");
  CHECK(cell(line, "resident") == "1.50 MB");
  CHECK(cell(line, "for") == "1:05");
  std::getline(lines, line);
  CHECK(cell(line, "limited by") == "idle for 1:15");
}

TEST_CASE("a cohort has a line with its members, and those that it waits for") {
  const auto sessionOf = [](const std::string& member, std::uint32_t samples) {
    SessionStatus session;
    session.kind = "run";
    session.run = "scans-" + member;
    session.model = "graph";
    session.cohort = "lungs-2026";
    session.member = member;
    session.samples = samples;
    session.waitsFor = {"west", "east"};
    return session;
  };
  ServerStatus status;
  status.sessions = {sessionOf("north", 1200), sessionOf("south", 1)};
  status.sessions[0].bytesUp = 2'000'000;
  status.sessions[0].bytesDown = 1'000'000;
  status.sessions[0].lateSeconds = 1.5;
  const auto json = nlohmann::ordered_json::parse(statusJson(status));
  CHECK(json.at("sessions").at(0).at("member") == "north");
  CHECK_THAT(
      statusTable(json, 0),
      Contains(
          "cohort lungs-2026: north (1200 samples, 2.00 MB up, 1.00 MB down, late for 1.50 s), "
          "south (1 sample, 0 B up, 0 B down, late for 0.00 s); waits for west, east\n"));
}

TEST_CASE("a narrow terminal shows fewer columns but keeps the bottleneck") {
  nlohmann::ordered_json status = document();
  status["sessions"] = {{{"session", 12},
                         {"identity", "clinic-a"},
                         {"from", "10.0.0.7:40000"},
                         {"seconds", 65},
                         {"kind", "run"},
                         {"run", "fashion-mnist-20260131-123456-1a2b3c"},
                         {"model", "mlp"},
                         {"memory_bytes", 2'000'000},
                         {"phase", "train"},
                         {"step", 1234},
                         {"epoch", 3},
                         {"images_per_second", 6485.4},
                         {"up_bytes_per_second", 12.3e6},
                         {"down_bytes_per_second", 4.5e6},
                         {"bottleneck", "server compute"},
                         {"busy_shares", {{"server_compute", 0.9}}},
                         {"idle_seconds", 0.02}}};
  CHECK_THAT(statusTable(status, 0), !Contains("no room"));
  for (const std::size_t columns : {70, 80, 100, 120}) {
    INFO(columns);
    const std::string table = statusTable(status, columns);
    CHECK_THAT(table, Contains("limited by") && Contains("server compute") && Contains("1234") &&
                          Contains("fashion-mnist-20260131-123456-1a2b3c") && Contains("no room"));
    std::istringstream rows(table);
    for (std::string row; std::getline(rows, row);) CHECK(row.size() <= columns);
  }
  // The terminal is too narrow for any abbreviation, so lines are cut.
  std::istringstream rows(statusTable(status, 30));
  for (std::string row; std::getline(rows, row);) {
    if (row.starts_with("run") || row.starts_with("fashion")) CHECK(row.size() <= 30);
  }
}

}  // namespace
}  // namespace cleave
