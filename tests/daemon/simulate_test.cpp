// `cleave-client simulate`, with measured times and with times from a file.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/daemon/daemons.h"
#include "tests/daemon/pty.h"
#include "tests/trace_checks.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// The times of 4 micro-batches. Each takes 10 ms at the client and 3 ms at the server, and sends 1
// MB in each direction.
std::string writeTimes(const TemporaryFolder& folder) {
  const nlohmann::json flow = {{"bytes", 5e5}, {"encode_seconds", 0}, {"decode_seconds", 0}};
  const nlohmann::json measured = {{"batch", 64},
                                   {"micro_batches", 4},
                                   {"head_forward_seconds", 3e-3},
                                   {"tail_step_seconds", 1e-3},
                                   {"head_backward_seconds", 6e-3},
                                   {"body_forward_seconds", 1e-3},
                                   {"body_backward_seconds", 2e-3},
                                   {"update_seconds", 5e-4},
                                   {"flows",
                                    {{"activation/0", flow},
                                     {"activation/1", flow},
                                     {"gradient/1", flow},
                                     {"gradient/0", flow}}}};
  const std::string path = folder.path("times.json");
  std::ofstream(path) << nlohmann::json{{"measured", {measured}}}.dump();
  return path;
}

TEST_CASE("simulate writes its steps in the trace format of a training run") {
  const TemporaryFolder folder;
  const std::string file = folder.path("trace.json");
  askJson({"simulate", "--times", writeTimes(folder), "--rate", "1Gbit/s", "--latency", "1ms",
           "--micro-batches", "2", "--micro-batches", "4", "--trace", file});
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  CHECK(processesOf(trace).size() == 2 * 3);  // one per number of micro-batches and schedule
  CHECK(processesOf(trace).at(1) == "priority, 2 micro-batches");
  checkTracksDoNotOverlap(trace);
  std::size_t forwards = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name").get<std::string>().starts_with("HeadForward")) {
      ++forwards;
    }
  }
  CHECK(forwards == 3 * (2 + 4));
}

TEST_CASE("simulate measures, predicts and names the bottleneck of a step") {
  const TemporaryFolder folder;
  const std::string times = folder.path("times.json");
  const nlohmann::json first =
      askJson({"simulate", "--config", configFile("synthetic.yaml"), "--set", "train.batch=32",
               "--rate", "10Mbit/s", "--latency", "1ms", "--micro-batches", "2", "--micro-batches",
               "4", "--steps", "2", "--write-times", times});
  REQUIRE(first.at("cases").size() == 2);
  CHECK(first.at("rate_up") == 10e6 / 8);
  for (const nlohmann::json& one : first.at("cases")) {
    CHECK(one.at("scaled") == false);
    CHECK(one.at("head_forward_seconds").get<double>() > 0);
    CHECK(one.at("flows").at("gradient/0").at("bytes").get<double>() > 0);
    for (const auto& [name, schedule] : one.at("schedules").items()) {
      CHECK(schedule.at("over_bound").get<double>() >= 1 - 1e-9);
      CHECK(schedule.at("seconds") >= first.at("best").at("seconds"));
      CHECK(one.at("best_order_seconds") <= schedule.at("seconds"));
    }
  }
  // The same times are used with another link.
  const nlohmann::json again = askJson({"simulate", "--times", times, "--rate", "unlimited",
                                        "--latency", "500ms", "--micro-batches", "4"});
  REQUIRE(again.at("cases").size() == 1);
  CHECK(again.at("cases").at(0).at("head_forward_seconds") ==
        first.at("cases").at(1).at("head_forward_seconds"));
  CHECK(again.at("cases").at(0).at("bottleneck") == "latency");
  CHECK(again.at("best").at("seconds").get<double>() > 2);
}

TEST_CASE("simulate agrees with a calculation by hand") {
  const TemporaryFolder folder;
  const std::string times = writeTimes(folder);
  const nlohmann::json fast =
      askJson({"simulate", "--times", times, "--rate", "unlimited", "--latency", "0"});
  // The client waits only while the first micro-batch crosses the link, and while the last one
  // does.
  const nlohmann::json& priority = fast.at("cases").at(0).at("schedules").at("priority");
  CHECK(priority.at("seconds").get<double>() == Approx(4 * 10e-3 + 5e-4).margin(3.1e-3));
  CHECK(fast.at("cases").at(0).at("bottleneck") == "client compute");
  const nlohmann::json slow =
      askJson({"simulate", "--times", times, "--rate", "1Gbit/s", "--up-rate", "8Mbit/s",
               "--latency", "0", "--micro-batches", "8"});
  CHECK(slow.at("cases").at(0).at("scaled") == true);
  CHECK(slow.at("cases").at(0).at("flows").at("activation/0").at("bytes") == 2.5e5);
  CHECK(slow.at("cases").at(0).at("bottleneck") == "uplink");
  CHECK(slow.at("cases").at(0).at("bound_seconds").get<double>() == Approx(4.0).epsilon(0.02));
}

TEST_CASE("simulate shows a table and a timeline that fit a terminal of 100 columns") {
  const TemporaryFolder folder;
  const Ended shown = ask({"simulate", "--times", writeTimes(folder), "--rate", "100Mbit/s",
                           "--latency", "5ms", "--timeline"});
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("link: 100 Mbit/s up, 100 Mbit/s down, 5 ms one way") &&
                               Contains("best order found") && Contains("  uplink ") &&
                               Contains("\nbest: ") && Contains(" with 4 micro-batches"));
  std::istringstream lines(shown.output);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("a timeline fits a terminal of 80 columns, and has a legend") {
  const TemporaryFolder folder;
  const TerminalProcess simulate({clientProgram(), "simulate", "--times", writeTimes(folder),
                                  "--rate", "100Mbit/s", "--latency", "5ms", "--timeline"},
                                 80, {{"TERM", "xterm"}});
  REQUIRE(simulate.wait(kPatience) == 0);
  const std::string output = simulate.output();
  INFO(output);
  for (const char* what : {"HeadForward", "TailStep", "HeadBackward", "BodyForward", "BodyBackward",
                           "encode", "decode", "activation", "gradient", "idle"}) {
    CHECK_THAT(output.substr(output.rfind("uplink")), Contains(what));
  }
  for (const std::string& row : screenAfter(output, 10'000)) CHECK(row.size() <= 80);
}

TEST_CASE("errors of simulate have a hint") {
  const TemporaryFolder folder;
  const std::string times = writeTimes(folder);
  const auto refused = [](const Arguments& arguments, const std::string& sentence) {
    const Ended ended = ask(arguments);
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(sentence) && Contains("hint: "));
  };
  refused({"simulate", "--rate", "1Gbit/s", "--latency", "1ms"}, "neither --config nor --times");
  refused({"simulate", "--times", times, "--rate", "1Gbit", "--latency", "1ms"}, "--rate: '1Gbit'");
  refused({"simulate", "--times", times, "--rate", "1Gbit/s", "--latency", "1"}, "--latency: '1'");
  refused({"simulate", "--times", times, "--rate", "1Gbit/s", "--latency", "1ms", "--micro-batches",
           "65"},
          "a batch has 64 samples");
  refused({"simulate", "--times", folder.path("none"), "--rate", "1Gbit/s", "--latency", "1ms"},
          "cannot be read");
  std::ofstream(folder.path("bad")) << R"({"measured": [{"batch": 1}]})";
  refused({"simulate", "--times", folder.path("bad"), "--rate", "1Gbit/s", "--latency", "1ms"},
          "was not written by --write-times");
}

}  // namespace
}  // namespace cleave::test
