// `cleave-client simulate`, with measured times and with times from profiles.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/daemon/daemons.h"
#include "tests/daemon/pty.h"
#include "tests/support/files/trace_checks.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// A configuration whose cuts have 31 kB per sample, and the options for the profile of both sides.
// In each of its 4 micro-batches of 16 samples, the client takes 10 ms, the server 3 ms, and 1 MB
// crosses the link in each direction.
Arguments profiled(const TemporaryFolder& folder) {
  nlohmann::json blocks, forward, backward, weights;
  const auto add = [&](const std::string& name, double forwardSeconds, double backwardSeconds) {
    blocks.push_back({{"name", name},
                      {"output_bytes_per_sample", name == "flatten"  ? 256
                                                  : name == "fc_out" ? 40
                                                                     : 31248},
                      {"parameter_bytes", 0},
                      {"saved_bytes_per_sample", 0},
                      {"update_seconds", name == "fc_out" ? 5e-4 : 0}});
    forward.push_back(forwardSeconds);
    backward.push_back(backwardSeconds);
    weights.push_back(backwardSeconds / 2);
  };
  add("flatten", 0, 0);
  add("fc1", 3e-3, 6e-3);
  add("relu1", 0, 0);
  add("fc2", 1e-3, 2e-3);
  add("relu2", 0, 0);
  add("fc_out", 4e-4, 6e-4);
  const nlohmann::json profile = {
      {"profile", 2},
      {"device", "the CPU"},
      {"threads", 1},
      {"memory_bytes", 1e9},
      {"batch", 64},
      {"blocks", blocks},
      {"sizes",
       {{{"samples", 16},
         {"loss_seconds", 0},
         {"forward_seconds", forward},
         {"backward_seconds", backward},
         {"weights_seconds", weights}}}},
      {"codecs", {{"none", {{"encode_seconds_per_byte", 0}, {"decode_seconds_per_byte", 0}}}}},
      {"run_spec", nlohmann::json::object()}};
  const std::string path = folder.path("profile.json");
  std::ofstream(path) << profile.dump();
  return {"--config",  configFile("synthetic.yaml"),
          "--set",     "train.batch=64",
          "--set",     "model.width=7812",
          "--set",     "codec=none",
          "--profile", path};
}

// Runs simulate with these times.
nlohmann::json simulated(const TemporaryFolder& folder, const Arguments& more) {
  return askJson(with(with({"simulate"}, profiled(folder)), more));
}

TEST_CASE("simulate writes its steps in the trace format of a training run") {
  const TemporaryFolder folder;
  const std::string file = folder.path("trace.json");
  simulated(folder, {"--rate", "1Gbit/s", "--latency", "1ms", "--micro-batches", "2",
                     "--micro-batches", "4", "--trace", file});
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  CHECK(processesOf(trace).size() == 2 * 4);  // one per number of micro-batches and schedule
  CHECK(processesOf(trace).at(1) == "priority, 2 micro-batches");
  checkTracksDoNotOverlap(trace);
  std::size_t forwards = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name").get<std::string>().starts_with("HeadForward")) {
      ++forwards;
    }
  }
  CHECK(forwards == 4 * (2 + 4));
}

TEST_CASE("simulate measures, predicts and names the bottleneck of a step") {
  const nlohmann::json first =
      askJson({"simulate", "--config", configFile("synthetic.yaml"), "--set", "train.batch=32",
               "--rate", "10Mbit/s", "--latency", "1ms", "--micro-batches", "2", "--micro-batches",
               "4", "--steps", "2"});
  REQUIRE(first.at("cases").size() == 2);
  CHECK(first.at("rate_up") == 10e6 / 8);
  for (const nlohmann::json& one : first.at("cases")) {
    CHECK(one.at("head_forward_seconds").get<double>() > 0);
    CHECK(one.at("flows").at("gradient/0").at("bytes").get<double>() > 0);
    for (const auto& [name, schedule] : one.at("schedules").items()) {
      CHECK(schedule.at("over_bound").get<double>() >= 1 - 1e-9);
      CHECK(schedule.at("seconds") >= first.at("best").at("seconds"));
      CHECK(one.at("best_order_seconds") <= schedule.at("seconds"));
    }
  }
}

TEST_CASE("simulate measures a run that keeps its best model and stops early") {
  const auto measured =
      askJson({"simulate", "--config", configFile("synthetic.yaml"), "--set", "train.batch=32",
               "--set", "keep.best=top1", "--set", "train.stop={metric: top1, patience: 2}",
               "--rate", "1Gbit/s", "--latency", "1ms", "--steps", "1"});
  CHECK(measured.at("cases").size() == 1);
}

TEST_CASE("simulate predicts the steps of a cohort") {
  const TemporaryFolder folder;
  const Arguments three = {"--set", "cohort={id: abc, members: [a, b, c], member: a}"};
  // Of each micro-batch, 1 MB crosses a link in each direction.
  const Arguments slow = {"--rate", "80Mbit/s", "--latency", "0"};
  const auto alone = simulated(folder, slow).at("cases").at(0);
  const auto together = simulated(folder, with(slow, three)).at("cases").at(0);
  CHECK_FALSE(alone.contains("members"));
  CHECK(together.at("members") == 3);
  CHECK(together.at("micro_batches") == 3 * 2);  // 22 samples of each, 16 per micro-batch
  const double sum = together.at("member_bytes").get<double>();
  CHECK(sum == 4.0 * 75 * 7812 + 40);  // of the trained parameters of head and tail
  const double before = alone.at("schedules").at("priority").at("seconds");
  const double after = together.at("schedules").at("priority").at("seconds");
  const double sent = 2 * sum / 10e6;  // seconds, up, and the sum down
  CHECK(after - sent > before / 3);    // the largest share of a batch counts
  CHECK(after - sent < 0.8 * before);
  // As if measured by a member alone, with its share of a batch.
  const auto measure = [&](const Arguments& more) {
    return askJson(
        with({"simulate", "--config", configFile("synthetic.yaml"), "--set", "train.batch=32",
              "--rate", "10Mbit/s", "--latency", "1ms", "--steps", "2"},
             with(three, more)));
  };
  const auto measured = measure({"--set", "codec=none"});
  const auto byDefault = measure({});
  CHECK(byDefault.at("cases").at(0).at("flows").at("gradient/0").at("bytes") ==
        measured.at("cases").at(0).at("flows").at("gradient/0").at("bytes"));
  CHECK(measured.at("cases").at(0).at("members") == 3);
  CHECK(measured.at("cases").at(0).at("batch") == 32);
  const Ended ended =
      finish(Process::start(with(with({clientProgram(), "simulate"}, profiled(folder)),
                                 with(with(slow, three), {"--staleness", "1"}))));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("steps of a cohort that overlap cannot be predicted"));
}

TEST_CASE("simulate agrees with a calculation by hand") {
  const TemporaryFolder folder;
  const nlohmann::json fast = simulated(folder, {"--rate", "unlimited", "--latency", "0"});
  // The client waits only while the first micro-batch crosses the link, and while the last one
  // does.
  const nlohmann::json& priority = fast.at("cases").at(0).at("schedules").at("priority");
  CHECK(priority.at("seconds").get<double>() == Approx(4 * 10e-3 + 5e-4).margin(3.1e-3));
  CHECK(fast.at("cases").at(0).at("bottleneck") == "client compute");
  const nlohmann::json slow = simulated(folder, {"--rate", "1Gbit/s", "--up-rate", "8Mbit/s",
                                                 "--latency", "0", "--micro-batches", "8"});
  CHECK(slow.at("cases").at(0).at("flows").at("activation/0").at("bytes") == 8 * 4 * 7812);
  CHECK(slow.at("cases").at(0).at("head_forward_seconds").get<double>() == Approx(1.5e-3));
  CHECK(slow.at("cases").at(0).at("bottleneck") == "uplink");
  CHECK(slow.at("cases").at(0).at("bound_seconds").get<double>() == Approx(4.0).epsilon(0.02));
  const nlohmann::json far = simulated(folder, {"--rate", "unlimited", "--latency", "500ms"});
  CHECK(far.at("cases").at(0).at("bottleneck") == "latency");
  CHECK(far.at("best").at("seconds").get<double>() > 2);
}

// Two bodies, with 9 ms and 3 ms per micro-batch of 16 samples. The link to the first one carries
// 4 kB and 0.5 MB up, the link to the second one 0.5 MB twice.
const Arguments kTwoBodies = {"--set", "model.cuts=[1, 3, 5]"};

TEST_CASE("simulate with two servers agrees with a calculation by hand") {
  const TemporaryFolder folder;
  const auto ofTwo = [&](const Arguments& more) {
    return simulated(folder, with(kTwoBodies, more)).at("cases").at(0);
  };
  const Arguments slow = {"--rate", "unlimited", "--up-rate", "8Mbit/s", "--latency", "0"};
  const nlohmann::json shared = ofTwo(slow);
  REQUIRE(shared.at("bodies").size() == 2);
  CHECK(shared.at("bodies").at(0).at("body_forward_seconds").get<double>() == Approx(3e-3));
  CHECK(shared.at("bodies").at(1).at("body_backward_seconds").get<double>() == Approx(2e-3));
  CHECK(shared.at("flows").at("activation/1").at("bytes") == 16 * 4 * 7812);
  CHECK(shared.at("flows").size() == 5);  // flatten has no parameters, so there is no gradient/0
  CHECK(shared.at("bottleneck") == "uplink");
  CHECK_FALSE(shared.contains("bottleneck_server"));
  CHECK(shared.at("bound_seconds").get<double>() == Approx(4 * (0.004 + 3 * 0.5)).epsilon(0.02));

  // The second link is the bottleneck; after its last tensor, one more crosses the first link.
  const nlohmann::json separate = ofTwo(with(slow, {"--separate-links"}));
  CHECK(separate.at("bottleneck") == "uplink");
  CHECK(separate.at("bottleneck_server") == 2);
  CHECK(separate.at("bound_seconds").get<double>() == Approx(4 * 2 * 0.5 + 0.5).epsilon(0.02));

  const nlohmann::json far = ofTwo({"--rate", "unlimited", "--latency", "0,500ms"});
  CHECK(far.at("bottleneck") == "latency");
  CHECK(far.at("best_order_seconds").get<double>() == Approx(4 * 0.5).epsilon(0.05));
}

TEST_CASE("simulate shows the links and the actions of each server") {
  const TemporaryFolder folder;
  const std::string trace = folder.path("trace.json");
  const Ended shown =
      ask(with(with(with({"simulate"}, profiled(folder)), kTwoBodies),
               {"--rate", "100Mbit/s", "--latency", "5ms,1ms", "--timeline", "--trace", trace}));
  INFO(shown.errors);
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("100 Mbit/s down, 5 ms, 1 ms one way, shared by all servers") &&
                               Contains("BodyForward 3.00 + 1.00, BodyBackward 6.00 + 2.00") &&
                               Contains("  uplink 1 ") && Contains("  uplink 2 ") &&
                               Contains("  server 2 "));
  const nlohmann::json file = nlohmann::json::parse(readFile(trace));
  checkTracksDoNotOverlap(file);
  CHECK_THAT(file.dump(), Contains("\"downlink 2\""));
}

TEST_CASE("simulate measures a run with two servers, or uses their profiles") {
  const TemporaryFolder folder;
  const Arguments run = {"--config",    configFile("synthetic.yaml"),
                         "--set",       "model.cuts=[1, 3, 5]",
                         "--log-level", "error"};
  const Arguments link = {"--rate", "10Mbit/s", "--latency", "1ms"};
  const auto measured = askJson(with(with({"simulate", "--steps", "2"}, run), link));
  const auto& costs = measured.at("cases").at(0);
  REQUIRE(costs.at("bodies").size() == 2);
  for (const auto& body : costs.at("bodies")) {
    CHECK(body.at("body_forward_seconds").get<double>() > 0);
  }
  CHECK(costs.at("flows").at("gradient/1").at("bytes").get<double>() > 0);

  const std::string client = folder.path("client.json"), server = folder.path("server.json");
  askJson(with(with({"profile"}, run), {"--output", client, "--repeat", "1"}));
  const Ended ended = finish(Process::start({serverProgram(), "profile", "--of", client, "--output",
                                             server, "--repeat", "1", "--log-level", "error"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto predicted =
      askJson(with(with(with({"simulate"}, run), link),
                   {"--profile", client, "--server-profile", server, "--server-profile", server}));
  CHECK(predicted.at("cases").at(0).at("flows").size() == costs.at("flows").size());
  CHECK(predicted.at("best").at("seconds").get<double>() > 0);
}

TEST_CASE("simulate shows a table and a timeline that fit a terminal of 100 columns") {
  const TemporaryFolder folder;
  const Ended shown = ask(with(with({"simulate"}, profiled(folder)),
                               {"--rate", "100Mbit/s", "--latency", "5ms", "--timeline"}));
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("link: 100 Mbit/s up, 100 Mbit/s down, 5 ms one way") &&
                               Contains("best order found") && Contains("  uplink ") &&
                               Contains("\nbest: ") && Contains(" with 4 micro-batches"));
  std::istringstream lines(shown.output);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("a timeline fits a terminal of 80 columns, and has a legend") {
  const TemporaryFolder folder;
  const TerminalProcess simulate(with(with({clientProgram(), "simulate"}, profiled(folder)),
                                      {"--rate", "100Mbit/s", "--latency", "5ms", "--timeline"}),
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
  const auto refused = [&](const Arguments& more, const std::string& sentence) {
    const Ended ended = ask(with(with({"simulate"}, profiled(folder)), more));
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(sentence) && Contains("hint: "));
  };
  refused({"--rate", "1Gbit", "--latency", "1ms"}, "--rate: '1Gbit'");
  refused({"--rate", "1Gbit/s", "--latency", "1"}, "--latency: '1'");
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--micro-batches", "65"},
          "a batch has 64 samples");
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--server-profile", folder.path("none")},
          "cannot be read");
  std::ofstream(folder.path("bad")) << R"({"profile": 1})";
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--server-profile", folder.path("bad")},
          "is not a profile");
  refused({"--rate", "1Gbit/s", "--latency", "1ms,2ms"}, "--latency has 2 values");
  const std::string profile = folder.path("profile.json");
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--server-profile", profile, "--server-profile",
           profile},
          "--server-profile names 2 files");
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--set", "model.depth=3"},
          "a profile does not have the blocks");
  refused({"--rate", "1Gbit/s", "--latency", "1ms", "--set", "model.width=7813"},
          "has an output of 31.2 kB per sample");
}

}  // namespace
}  // namespace cleave::test
