// Training with the real programs: the files of a run, the sums of bytes, and results that depend
// neither on timing nor on other clients.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/daemon/daemons.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

const Arguments kSmallCnn = {"--set", "model={name: small_cnn, width: 4}"};
const std::vector<std::string> kTables = {"transfers.csv", "steps.csv", "epochs.csv"};
const std::vector<std::string> kFiles = {"transfers.csv", "steps.csv",        "epochs.csv",
                                         "config.yaml",   "environment.json", "log.txt"};

TEST_CASE("a run writes its files on both sides, and a summary that agrees with them") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string client = folder.path("client");
  const Ended ended =
      runClient("train", client, {"--server", server.address(), "--json", "--set", "codec=none"});
  REQUIRE(ended.code == 0);
  server.stop();
  const auto summary = nlohmann::json::parse(ended.output);
  const std::string runId = summary.at("run");
  for (const std::string& file : kFiles) {
    INFO(file);
    CHECK_FALSE(readFile(client + "/" + file).empty());
    CHECK_FALSE(readFile(server.runFolder(runId) + "/" + file).empty());
  }
  CHECK(readFile(client + "/model.safetensors").size() > 1000);
  CHECK(summary.at("steps") == 8);
  CHECK(nlohmann::json::parse(readFile(client + "/summary.json")) == summary);

  const auto environment = nlohmann::json::parse(readFile(client + "/environment.json"));
  CHECK(environment.at("threads").get<int>() >= 1);

  const auto steps = readCsv(client + "/steps.csv");
  CHECK(steps.front().at("phase") == "handshake");
  CHECK(steps.back().at("phase") == "bye");
  CHECK(steps.size() == 2 + 8 + 1);
  CHECK(sumOf(steps, "samples", {{"phase", "train"}}) == 256);
  for (const std::string side : {"client", "body"}) {
    const std::uint64_t peak = summary.at(side + "_memory_bytes");
    CHECK(std::to_string(peak) == steps.at(8).at(side + "_memory_bytes"));
    CHECK(peak > 1 << 20);
  }
  CHECK(readCsv(client + "/epochs.csv").size() == 1);
  CHECK(readCsv(server.runFolder(runId) + "/epochs.csv").size() == 1);
  CHECK(readCsv(server.runFolder(runId) + "/steps.csv").size() == 2 + 8 + 1);

  // 8 steps of 4 micro-batches with 4 tensors each, one evaluation of 4 micro-batches with 2
  // tensors each, and the weights. Both sides record all of them.
  for (const std::string& side : {client, server.runFolder(runId)}) {
    const auto transfers = readCsv(side + "/transfers.csv");
    CHECK(transfers.size() == 8 * 4 * 4 + 4 * 2 + 1);
    for (const CsvRow& row : transfers) {
      CHECK(std::stod(row.at("wire_bytes")) > std::stod(row.at("raw_bytes")));
      CHECK_FALSE(row.at("wire_seconds").empty());
    }
  }
}

TEST_CASE("a run id never begins with a dash, whatever run.name is") {
  const TemporaryFolder folder;
  const std::pair<std::string, std::string> rows[] = {
      {"-rf", "rf-"}, {"--Help me", "help-me-"}, {"日本", "run-"}};
  for (const auto& [name, begin] : rows) {
    INFO(name);
    const Ended ended =
        runClient("train", folder.path(begin), {"--json", "--set", "run.name=" + name});
    REQUIRE(ended.code == 0);
    const std::string id = nlohmann::json::parse(ended.output).at("run");
    CHECK_THAT(id, Catch::StartsWith(begin));
  }
}

TEST_CASE("the split model learns") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"), {"--set", "train.epochs=8", "--json"});
  REQUIRE(ended.code == 0);
  CHECK(nlohmann::json::parse(ended.output).at("eval").at("top1") > 0.9);  // guessing gives 0.1
}

// Both sides record every byte that crosses the relay: tensors in transfers.csv, everything else in
// steps.csv.
void checkBytes(const std::string& folder, bool isClient, double up, double down) {
  const auto transfers = readCsv(folder + "/transfers.csv");
  const auto steps = readCsv(folder + "/steps.csv");
  const std::string upRole = isClient ? "send" : "recv";
  const std::string downRole = isClient ? "recv" : "send";
  CHECK(sumOf(transfers, "wire_bytes", {{"role", upRole}}) + sumOf(steps, "control_up_bytes") ==
        up);
  CHECK(sumOf(transfers, "wire_bytes", {{"role", downRole}}) + sumOf(steps, "control_down_bytes") ==
        down);
}

TEST_CASE("the files count exactly the bytes that crossed the connection") {
  for (const std::string codec : {"none", "fp16", "uniform:bits=5"}) {
    CAPTURE(codec);
    const TemporaryFolder folder;
    TestServer server(folder);
    Relay relay("127.0.0.1", server.port());
    const std::string client = folder.path("client");
    const Ended ended =
        runClient("train", client,
                  with(kSmallCnn, {"--server", "127.0.0.1:" + std::to_string(relay.port()), "--set",
                                   "codec=" + codec, "--json"}));
    REQUIRE(ended.code == 0);
    server.stop();
    const auto summary = nlohmann::json::parse(ended.output);
    CHECK(summary.at("bytes_up") == relay.bytesUp());
    CHECK(summary.at("bytes_down") == relay.bytesDown());
    const auto up = static_cast<double>(relay.bytesUp());
    const auto down = static_cast<double>(relay.bytesDown());
    CHECK(up > 10000);
    checkBytes(client, true, up, down);
    checkBytes(server.runFolder(summary.at("run")), false, up, down);
  }
}

std::string weightsAfter(const std::string& client, const Arguments& more) {
  const Ended ended = runClient("train", client, more);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return readTensors(client + "/model.safetensors");
}

TEST_CASE("the same configuration is bit-identical for any timing and schedule") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments common = with(kSmallCnn, {"--set", "codec=uniform:bits=6"});
  const std::string alone =
      weightsAfter(folder.path("alone"), with(common, {"--server", server.address()}));
  CHECK(weightsAfter(folder.path("again"), with(common, {"--server", server.address()})) == alone);
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    CAPTURE(schedule);
    CHECK(weightsAfter(folder.path(schedule), with(common, {"--server", server.address(), "--set",
                                                            "train.schedule=" + schedule})) ==
          alone);
  }
  Relay relay("127.0.0.1", server.port());
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    relay.delay(std::chrono::milliseconds(2), seed);
    CHECK(weightsAfter(folder.path("delayed" + std::to_string(seed)),
                       with(common, {"--server", "127.0.0.1:" + std::to_string(relay.port())})) ==
          alone);
  }
  CHECK(weightsAfter(folder.path("other-seed"),
                     with(common, {"--server", server.address(), "--set", "run.seed=2"})) != alone);
}

TEST_CASE("clients that train at the same time do not affect each other") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const std::vector<Arguments> runs = {
      with(kSmallCnn, {"--set", "run.seed=1"}),
      with(kSmallCnn, {"--set", "run.seed=2", "--set", "codec=bf16"}),
      {"--set", "run.seed=3", "--set", "model.dropout=0.2", "--set", "train.schedule=1f1b"},
  };
  std::vector<std::string> alone;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    alone.push_back(weightsAfter(folder.path("alone" + std::to_string(run)),
                                 with(runs[run], {"--server", server.address()})));
  }
  std::vector<Process> together;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    together.push_back(startClient("train", folder.path("together" + std::to_string(run)),
                                   with(runs[run], {"--server", server.address()})));
  }
  for (std::size_t run = 0; run < runs.size(); ++run) {
    REQUIRE(finish(together[run]).code == 0);
    CHECK(readTensors(folder.path("together" + std::to_string(run)) + "/model.safetensors") ==
          alone[run]);
  }
}

TEST_CASE("a run begins with given weights, at the client and at the server") {
  const TemporaryFolder folder;
  REQUIRE(runClient("train", folder.path("first"), {}).code == 0);
  const std::string weights = folder.path("first") + "/model.safetensors";
  // With a learning rate of 0, training does not change the weights.
  const Arguments arguments = {"--set", "weights.file=" + weights,
                               "--set", "train.learning_rate={schedule: constant, peak: 0}",
                               "--set", "run.seed=99"};
  REQUIRE(runClient("train", folder.path("second"), arguments).code == 0);
  CHECK(readTensors(folder.path("second") + "/model.safetensors") == readTensors(weights));
  Arguments except = arguments;
  except.insert(except.end(), {"--set", "weights.except=[fc1]"});
  REQUIRE(runClient("train", folder.path("third"), except).code == 0);
  CHECK(readTensors(folder.path("third") + "/model.safetensors") != readTensors(weights));
  CHECK(runClient("verify", folder.path("fourth"), arguments).code == 0);
}

TEST_CASE("an incomplete last batch is used, even with fewer samples than micro-batches") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--set", "data.train.size=67", "--set", "train.micro_batches=8", "--json"});
  REQUIRE(ended.code == 0);
  const auto steps = readCsv(folder.path("client") + "/steps.csv");
  CHECK(sumOf(steps, "samples", {{"phase", "train"}}) == 67);
  CHECK(sumOf(steps, "micro_batches", {{"phase", "train"}}) == 8 + 8 + 3);
}

TEST_CASE("the model sleep takes its times on both sides") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--set", "model={name: sleep, of: mlp, F1: 3, T3: 2, B1: 4, F2: 5, B2: 6}",
                 "--set", "train.max_steps=3", "--set", "eval.every=0", "--json"});
  REQUIRE(ended.code == 0);
  const auto steps = readCsv(folder.path("client") + "/steps.csv");
  int seen = 0;
  for (const CsvRow& row : steps) {
    if (row.at("phase") != "train") continue;
    ++seen;
    CHECK(std::stod(row.at("head_forward_seconds")) >= 4 * 0.003);
    CHECK(std::stod(row.at("tail_step_seconds")) >= 4 * 0.002);
    CHECK(std::stod(row.at("head_backward_seconds")) >= 4 * 0.004);
    CHECK(std::stod(row.at("body_forward_seconds")) >= 4 * 0.005);
    CHECK(std::stod(row.at("body_backward_seconds")) >= 4 * 0.006);
  }
  CHECK(seen == 3);
}

TEST_CASE("a training run reports its steps relative to the bound, and their bottleneck") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  // The tensors have 256 kB, so that the link's rates are known after a few steps.
  const Ended ended =
      runClient("train", run,
                {"--json", "--set", "train.batch=64", "--set",
                 "model={name: sleep, of: mlp, width: 4096, F1: 6, T3: 2, B1: 8, F2: 1, B2: 1}"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const nlohmann::json bound = nlohmann::json::parse(ended.output).at("bound");
  CHECK(bound.at("bottleneck") == "client compute");
  CHECK(bound.at("over_bound").get<double>() > 0.99);
  CHECK(bound.at("seconds_per_step").get<double>() > 4 * 16e-3);
  CHECK(bound.at("step_spread").is_null());  // 4 steps are too few
  CHECK(bound.at("advice").at("settings").empty());
  CHECK_FALSE(bound.at("advice").at("sentence").get<std::string>().empty());
  CsvRow last;
  for (const CsvRow& row : readCsv(run + "/steps.csv")) {
    if (row.at("phase") == "train") last = row;
  }
  CHECK(last.at("bottleneck") == "client compute");
  CHECK(std::stod(last.at("rate_up")) > 0);
  CHECK(std::stod(last.at("rate_down")) > 0);
  CHECK(std::stod(last.at("over_bound")) ==
        Approx(std::stod(last.at("seconds")) / std::stod(last.at("bound_seconds"))).epsilon(1e-4));
}

TEST_CASE("terminal, JSON and report give the same advice") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const Ended ended =
      runClient("train", run, {"--set", "model.width=4096", "--set", "train.batch=64"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(readFile(run + "/summary.json"));
  const std::string sentence = summary.at("bound").at("advice").at("sentence");
  REQUIRE_FALSE(sentence.empty());
  CHECK_THAT(ended.output, Catch::Matchers::Contains("\nadvice      " + sentence + "\n"));

  const Ended report = ask({"report", run, "--json"});
  REQUIRE(report.code == 0);
  const auto headline = nlohmann::json::parse(report.output).at("runs").at(0).at("headline");
  CHECK(headline.at("advice") == sentence);
  CHECK(headline.at("bottleneck") == summary.at("bound").at("bottleneck"));
  CHECK_THAT(readFile(run + "/report.html"),
             Catch::Matchers::Contains(nlohmann::json(sentence).dump()));
}

TEST_CASE("a run with many bytes and too few steps names the steps as the reason for no bound") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("run"),
                {"--set", "train.max_steps=1", "--set", "model.width=4096", "--json"});
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  CHECK_FALSE(summary.contains("bound"));
  CHECK_THAT(summary.at("bound_unknown").get<std::string>(), Catch::Matchers::Contains("steps"));
}

TEST_CASE("a batch larger than the training data gives a warning") {
  const TemporaryFolder folder;
  const Ended large = runClient("train", folder.path("large"), {"--set", "train.batch=4096"});
  CHECK(large.code == 0);
  CHECK_THAT(large.errors, Catch::Matchers::Contains("warning") &&
                               Catch::Matchers::Contains("lower train.batch"));
  const Ended whole = runClient("train", folder.path("whole"), {"--set", "train.batch=64"});
  CHECK(whole.code == 0);
  CHECK_THAT(whole.errors, !Catch::Matchers::Contains("lower train.batch"));
}

}  // namespace
}  // namespace cleave::test
