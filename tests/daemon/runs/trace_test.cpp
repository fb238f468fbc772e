// `train --trace` writes one file with the spans of client and server.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/files/trace_checks.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

constexpr int kMicroBatches = 4;  // in configs/synthetic.yaml

nlohmann::json train(const std::string& folder, const std::string& server, Arguments more,
                     std::string* log = nullptr) {
  more.insert(more.end(), {"--server", server, "--json", "--set", "train.max_steps=6"});
  const Ended ended = runClient("train", folder, more);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  if (log != nullptr) *log = readFile(folder + "/log.txt");
  return nlohmann::json::parse(ended.output);
}

// The number of slices by category, name (without the number in it), and step.
std::map<std::tuple<std::string, std::string, int>, int> countSlices(const nlohmann::json& trace) {
  std::map<std::tuple<std::string, std::string, int>, int> counts;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" && event.at("ph") != "b") continue;
    std::string name = event.at("name").get<std::string>();
    const std::string number = " " + std::to_string(event.at("args").at("micro_batch").get<int>());
    if (name.ends_with(number)) name.resize(name.size() - number.size());
    ++counts[{event.at("cat").get<std::string>(), name, event.at("args").at("step").get<int>()}];
  }
  return counts;
}

// Seconds of an action in a step.
double computed(const nlohmann::json& trace, const std::string& action, int step) {
  double sum = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == "compute" &&
        event.at("name").get<std::string>().starts_with(action) &&
        event.at("args").at("step") == step) {
      sum += 1e-6 * event.at("dur").get<double>();
    }
  }
  return sum;
}

void checkWhole(const nlohmann::json& trace, int first, int last, bool coded) {
  std::set<std::string> processes;
  for (const auto& [pid, name] : processesOf(trace)) processes.insert(name);
  CHECK(processes == std::set<std::string>{"client", "server"});
  checkTracksDoNotOverlap(trace);

  const auto counts = countSlices(trace);
  for (const auto& [what, count] : counts) {
    CHECK(std::get<2>(what) >= first);
    CHECK(std::get<2>(what) <= last);
  }
  const auto count = [&](const std::string& category, const std::string& name, int step) {
    const auto found = counts.find({category, name, step});
    return found == counts.end() ? 0 : found->second;
  };
  for (int step = first; step <= last; ++step) {
    CAPTURE(step);
    for (const char* action :
         {"HeadForward", "TailStep", "HeadBackward", "BodyForward", "BodyBackward"}) {
      CHECK(count("compute", action, step) == kMicroBatches);
    }
    CHECK(count("compute", "Update", step) == 2);
    CHECK(count("compute", "Decide", step) == 1);
    CHECK(count("compute", "Report", step) == 1);
    for (const std::string flow : {"activation/0", "activation/1", "gradient/1", "gradient/0"}) {
      CAPTURE(flow);
      CHECK(count("encode", "encode " + flow, step) == (coded ? kMicroBatches : 0));
      CHECK(count("decode", "decode " + flow, step) == (coded ? kMicroBatches : 0));
      CHECK(count("queue", "queue " + flow, step) == kMicroBatches);
      CHECK(count("send", "send " + flow, step) >= kMicroBatches);
      CHECK(count("receive", "receive " + flow, step) >= kMicroBatches);
    }
    CHECK(count("wait", "wait for BodyDone", step) <= 1);
  }

  const double error = 1e6 * trace.at("otherData").at("clock_error_seconds").get<double>();
  const std::vector<TraceArrow> arrows = arrowsOf(trace);
  CHECK(arrows.size() == std::size_t(4 * kMicroBatches * (last - first + 1)));
  for (const TraceArrow& arrow : arrows) {
    const bool up = arrow.name == "activation/0" || arrow.name == "gradient/1";
    CHECK(arrow.fromProcess == (up ? "client" : "server"));
    CHECK(arrow.toProcess == (up ? "server" : "client"));
    CHECK(arrow.end >= arrow.begin - error - 1e-3);
  }
}

void checkSeconds(const nlohmann::json& trace, const std::string& stepsFile,
                  const std::map<std::string, std::string>& columns, int first, int last) {
  for (const CsvRow& row : readCsv(stepsFile)) {
    if (row.at("phase") != "train") continue;
    const int step = std::stoi(row.at("step"));
    if (step < first || step > last) continue;
    for (const auto& [action, column] : columns) {
      CAPTURE(step, action);
      CHECK(computed(trace, action, step) == Approx(std::stod(row.at(column))).epsilon(0.05));
    }
  }
}

TEST_CASE("a trace has the complete steps of client and server on one clock") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string client = folder.path("client"), file = folder.path("trace.json");
  std::string log;
  const nlohmann::json summary =
      train(client, server.address(), {"--trace", file, "--trace-steps", "3"}, &log);
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  checkWhole(trace, 2, 4, true);

  const nlohmann::json& about = trace.at("otherData");
  CHECK(about.at("run") == summary.at("run"));
  CHECK(about.at("dropped_spans") == 0);
  // Client and server run on this machine and share its clock.
  const double error = about.at("clock_error_seconds").get<double>();
  CHECK(error > 0);
  CHECK(error < 1);
  CHECK(std::abs(about.at("server_clock_ahead_seconds").get<double>()) <= error);

  CHECK(summary.at("trace").at("file") == file);
  CHECK(summary.at("trace").at("clock_error_seconds") == about.at("clock_error_seconds"));
  CHECK_THAT(log, Contains("trace: steps 2 to 4 in " + file + "; clock error at most "));

  checkSeconds(trace, client + "/steps.csv",
               {{"HeadForward", "head_forward_seconds"},
                {"TailStep", "tail_step_seconds"},
                {"HeadBackward", "head_backward_seconds"},
                {"BodyForward", "body_forward_seconds"},
                {"BodyBackward", "body_backward_seconds"}},
               2, 4);
  server.stop();
  checkFilesComplete(client);
  checkFilesComplete(server.runFolder(summary.at("run").get<std::string>()));
}

TEST_CASE("a trace with two servers has the spans of both bodies and of both links") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string file = folder.path("trace.json");
  const nlohmann::json summary =
      train(folder.path("client"), server.address() + "," + server.address(),
            {"--trace", file, "--trace-steps", "2", "--set", "model.cuts=[2, 3, 5]"});
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  checkTracksDoNotOverlap(trace);
  std::map<std::string, int> forwards;  // by process
  const auto processes = processesOf(trace);
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name").get<std::string>().starts_with("BodyForward")) {
      ++forwards[processes.at(event.at("pid").get<int>())];
    }
  }
  CHECK(forwards == std::map<std::string, int>{{"server 1", 2 * kMicroBatches},
                                               {"server 2", 2 * kMicroBatches}});
  std::map<std::string, int> arrows;
  for (const TraceArrow& arrow : arrowsOf(trace)) {
    ++arrows[arrow.name + " " + arrow.fromProcess + " > " + arrow.toProcess];
  }
  CHECK(arrows.size() == 8);
  for (const char* expected : {"activation/0 client > server 1", "activation/1 server 1 > client",
                               "activation/1 client > server 2", "activation/2 server 2 > client",
                               "gradient/2 client > server 2", "gradient/1 server 2 > client",
                               "gradient/1 client > server 1", "gradient/0 server 1 > client"}) {
    CAPTURE(expected);
    CHECK(arrows[expected] == 2 * kMicroBatches);
  }
  CHECK(trace.at("otherData").at("server_clock_ahead_seconds").size() == 2);
  CHECK(summary.at("trace").at("dropped_spans") == 0);
}

TEST_CASE("a slow link is visible as long arrows and as waiting time of the device") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Relay relay("127.0.0.1", server.port());
  relay.delay(std::chrono::milliseconds(20));  // a one-way delay of 20 to 40 ms
  const std::string file = folder.path("trace.json");
  // If more steps are requested than exist, the trace has all steps.
  train(folder.path("client"), "127.0.0.1:" + std::to_string(relay.port()),
        {"--trace", file, "--set", "codec=none"});
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  checkWhole(trace, 2, 6, false);
  const double error = 1e6 * trace.at("otherData").at("clock_error_seconds").get<double>();
  CHECK(error >= 20'000);
  for (const TraceArrow& arrow : arrowsOf(trace)) {
    CHECK(arrow.end - arrow.begin + error >= 20'000);
  }
  const auto counts = countSlices(trace);
  CHECK(counts.contains({"wait", "wait for activation/1", 3}));
  CHECK(counts.contains({"wait", "wait for gradient/1", 3}));
}

TEST_CASE("a training run of one step is traced completely") {
  const TemporaryFolder folder;
  const std::string file = folder.path("trace.json");
  const Ended ended =
      runClient("train", folder.path("client"), {"--trace", file, "--set", "train.max_steps=1"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Contains("trace       steps 1 to 1 in " + file));
  checkWhole(nlohmann::json::parse(readFile(file)), 1, 1, true);
}

// Steps after the traced ones begin when the trace has been fetched.
TEST_CASE("a trace of steps that overlap is complete, and the run continues") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string client = folder.path("client"), file = folder.path("trace.json");
  const nlohmann::json summary =
      train(client, server.address(),
            {"--trace", file, "--trace-steps", "3", "--set", "train.staleness=3", "--set",
             "train.learning_rate.peak=0.005"});
  checkWhole(nlohmann::json::parse(readFile(file)), 2, 4, true);
  CHECK(summary.at("steps") == 6);
}

TEST_CASE("a trace that cannot be written is refused before anything begins") {
  const TemporaryFolder folder;
  const std::string config = configFile("synthetic.yaml");
  checkMistakes(
      {clientProgram(), "train", "--config", config},
      {{"no folder",
        {"--trace", folder.path("none") + "/t.json"},
        kWrongUse,
        {"[not-writable]", "create the folder first: mkdir -p"}},
       {"a folder", {"--trace", "/tmp"}, kWrongUse, {"[bad-value]", "/tmp is a folder"}},
       {"no steps", {"--trace", "t.json", "--trace-steps", "0"}, kWrongUse, {"--trace-steps"}},
       {"too many", {"--trace", "t.json", "--trace-steps", "10001"}, kWrongUse, {"--trace-steps"}},
       {"no file", {"--trace-steps", "5"}, kWrongUse, {"--trace"}}});
}

}  // namespace
}  // namespace cleave::test
