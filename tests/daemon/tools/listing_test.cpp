// Client commands that need no server: lists, --version, --help, and the dry run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

constexpr std::size_t kMaxColumns = 100;

void checkFitsTerminal(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= kMaxColumns);
    CHECK((line.empty() || line.back() != ' '));
  }
  CHECK(output.ends_with('\n'));
}

void checkList(const std::string& command, const std::vector<std::string>& names) {
  INFO(command);
  const nlohmann::json listed = askJson({command});
  REQUIRE(listed.size() == 1);
  const Ended shown = ask({command});
  CHECK(shown.code == 0);
  CHECK(shown.errors.empty());
  checkFitsTerminal(shown.output);

  std::vector<std::string> seen;
  for (const nlohmann::json& item : listed.at(command)) {
    const std::string name = item.at("name");
    INFO(name);
    seen.push_back(name);
    CHECK_FALSE(item.at("description").get<std::string>().empty());
    CHECK(item.at("parameters").is_string());
    CHECK_THAT(item.at("example").get<std::string>(), Contains(name));
    CHECK_THAT(shown.output, Contains("\n  " + name + " ") &&
                                 Contains(item.at("example").get<std::string>() + "\n"));
  }
  for (const std::string& name : names) {
    CHECK(std::find(seen.begin(), seen.end(), name) != seen.end());
  }
}

TEST_CASE("each list command prints its entries as text and as JSON") {
  checkList("models", {"small_cnn", "mlp"});
  checkList("schedules", {"priority", "gpipe", "1f1b", "zb"});
  checkList("codecs", {"auto", "none", "fp16", "bf16", "uniform", "sort", "fast", "topk",
                       "randtopk", "kmeans", "power", "svd"});
  checkList("optimizers", {"sgd"});
  checkList("learning-rates", {"constant", "cosine"});
}

TEST_CASE("the example of each model is a configuration that trains") {
  for (const nlohmann::json& item : askJson({"models"}).at("models")) {
    const std::string name = item.at("name");
    if (name != "mlp") continue;  // other models require other image sizes
    const std::string example = item.at("example");
    const std::string set = "model=" + example.substr(example.find('{'));
    CHECK(
        ask({"train", "--dry-run", "--config", configFile("synthetic.yaml"), "--set", set}).code ==
        0);
  }
}

TEST_CASE("every command's help has an example and ends with a line break") {
  for (const char* command : {"train", "verify", "models", "schedules", "codecs", "optimizers",
                              "learning-rates", "doctor"}) {
    INFO(command);
    const Ended help = ask({command, "--help"});
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains(std::string("Example:\n  cleave-client ") + command));
    CHECK(help.output.ends_with('\n'));
  }
  CHECK_THAT(ask({"--help"}).output, Contains("codecs"));
  CHECK_THAT(ask({"--version"}).output, Catch::Matches("cleave \\d+\\.\\d+\\.\\d+\n"));
}

// Nothing listens on port 1, so a dry run that connected would fail.
const Arguments kDryRun = {"train",    "--dry-run",        "--config", configFile("synthetic.yaml"),
                           "--server", "127.0.0.1:1",      "--set",    "data.train.size=67",
                           "--set",    "data.test.size=40"};

Arguments dryRun(const Arguments& more) {
  Arguments arguments = kDryRun;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_CASE("memory is counted for batches that exist, and the largest part of it is named") {
  const auto memoryWith = [](const std::string& evalBatch) {
    return askJson(dryRun({"--set", "eval.batch=" + evalBatch}));
  };
  const auto limited = memoryWith("40"), larger = memoryWith("1000");  // the set has 40 samples
  CHECK(limited.at("server_memory_bytes") == larger.at("server_memory_bytes"));
  CHECK(limited.at("client_memory_bytes") == larger.at("client_memory_bytes"));
  const auto& term = larger.at("server_largest_term").at(0);
  CHECK(term.at("batch") == "eval.batch");
  CHECK(term.at("samples") == 40);
  std::uint64_t sum = 0, largest = 0;
  for (const auto& each : larger.at("server_memory_terms").at(0)) {
    const auto bytes = each.at("bytes").get<std::uint64_t>();
    sum += bytes;
    largest = std::max(largest, bytes);
    CHECK_FALSE(each.at("lowered_by").get<std::string>().empty());
  }
  const auto all = larger.at("server_memory_bytes").at(0).get<std::uint64_t>();
  CHECK(all - sum < 10);  // fractions of a byte
  CHECK(term.at("bytes") == largest);
  // With batches of 32 samples, as in training, the server needs less.
  const auto same = memoryWith("32");
  CHECK(same.at("server_memory_bytes").at(0) == term.at("server_memory_bytes_with_train_batch"));
  CHECK(same.at("server_memory_bytes").at(0) < larger.at("server_memory_bytes").at(0));
  CHECK(same.at("server_largest_term").at(0).at("batch") == "train.batch");
  CHECK_THAT(ask(dryRun({})).output, Contains("with batches of 40 samples"));
}

TEST_CASE("a dry run warns of batch norms that see few samples, and of batches without data") {
  const auto warningsWith = [](const Arguments& more) {
    return askJson(dryRun(with({"--set", "model={name: small_cnn}"}, more))).at("warnings");
  };
  const Arguments whole = {"--set", "data.train.size=64"};  // no smaller last batch
  CHECK(warningsWith(whole).empty());                       // 4 micro-batches of 8
  const auto few = warningsWith(with(whole, {"--set", "train.micro_batches=5"}));
  REQUIRE(few.size() == 1);
  CHECK_THAT(few.at(0).get<std::string>(),
             Contains("the smallest has only 6 samples (a batch of 32 in 5 micro-batches)") &&
                 Contains("set train.micro_batches to 4"));
  const auto last = warningsWith({"--set", "data.train.size=72"});  // a last batch of 8
  REQUIRE(last.size() == 1);
  CHECK_THAT(last.at(0).get<std::string>(), Contains("each epoch's last batch has only 2 samples"));
  const auto large = warningsWith(with(whole, {"--set", "train.batch=100000"}));
  REQUIRE(large.size() == 1);
  CHECK_THAT(large.at(0).get<std::string>(),
             Contains("train.batch is 100000, but there are only 64"));
  // The mlp has no batch norm.
  CHECK(askJson(dryRun({"--set", "train.micro_batches=32"})).at("warnings").empty());
}

TEST_CASE("a dry run shows layers, cuts, bytes and memory, and starts nothing") {
  const TemporaryFolder folder;
  const std::string runFolder = folder.path("run");
  const Ended shown = ask(dryRun({"--run-dir", runFolder}));
  CHECK(shown.code == 0);
  CHECK(shown.errors.empty());
  checkFitsTerminal(shown.output);
  for (const char* text :
       {"warmup_epochs: 0.0\n", "head, on the client: 2080 parameters", "cut 0: [batch, 32]",
        "body, on the server: 1056 parameters", "cut 1: [batch, 32]", "tail, on the client",
        "activation/0", "Not included: frame headers, control messages", "\n  client  ",
        "\n  server  ", "Nothing was started"}) {
    CHECK_THAT(shown.output, Contains(text));
  }
  CHECK_FALSE(std::filesystem::exists(runFolder));
}

TEST_CASE("a dry run shows the bytes that a training run sends") {
  const Arguments sizes = {"--set", "train.micro_batches=8", "--set", "codec=none",
                           "--set", "data.train.size=67",    "--set", "data.test.size=40",
                           "--set", "train.epochs=1"};
  const nlohmann::json planned = askJson(dryRun(sizes));
  const TemporaryFolder folder;
  const std::string client = folder.path("client");
  REQUIRE(runClient("train", client, sizes).code == 0);
  const auto rows = readCsv(client + "/transfers.csv");
  // With the codec none, encoded bytes equal raw bytes. Transfers of weights are excluded, because
  // they are not part of a step.
  const auto sum = [&](const char* phase, const char* flow) {
    return sumOf(rows, "raw_bytes", {{"phase", phase}, {"flow", flow}});
  };
  CHECK(planned.at("epoch").at("up_bytes") ==
        sum("train", "activation/0") + sum("train", "gradient/1"));
  CHECK(planned.at("epoch").at("down_bytes") ==
        sum("train", "activation/1") + sum("train", "gradient/0"));
  CHECK(planned.at("evaluation").at("up_bytes") == sum("eval", "activation/0"));
  CHECK(planned.at("evaluation").at("down_bytes") == sum("eval", "activation/1"));
  CHECK(planned.at("steps") == 3);
}

TEST_CASE("a dry run counts the bytes of direct links apart from those of the client's link") {
  const Arguments twoBodies = {
      "train",    "--dry-run",
      "--config", configFile("synthetic.yaml"),
      "--set",    "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}",
      "--set",    "codec=none"};
  const Arguments direct = with(twoBodies, {"--set", "connect.direct=true"});
  const nlohmann::json hub = askJson(twoBodies), planned = askJson(direct);
  // All cuts have the same size. Without direct links, the tensors of cut 1 cross the client's link
  // twice. A batch is 32 samples of 16 values.
  const std::uint64_t perCut = std::uint64_t{32} * 16 * sizeof(float);
  for (const char* way : {"up_bytes", "down_bytes"}) {
    CHECK(hub.at("step").at(way) == 4 * perCut);
    CHECK(planned.at("step").at(way) == 2 * perCut);
  }
  CHECK(hub.at("step").at("direct_bytes") == 0);
  CHECK(planned.at("step").at("direct_bytes") == 2 * perCut);
  CHECK(planned.at("evaluation").at("direct_bytes") == planned.at("evaluation").at("up_bytes"));
  std::vector<std::string> flows;
  for (const auto& flow : planned.at("flows")) {
    if (flow.at("direction") == "direct") flows.push_back(flow.at("flow"));
  }
  CHECK(flows == std::vector<std::string>{"activation/1", "gradient/1"});
  const std::string text = ask(direct).output;
  checkFitsTerminal(text);
  CHECK_THAT(text, Contains("activation/1  direct  ") && Contains(" between servers\n"));
  CHECK_THAT(ask(twoBodies).output, !Contains("between servers"));
}

TEST_CASE("a dry run shows the encoded bytes of a codec") {
  const nlohmann::json planned =
      askJson(dryRun({"--set", "codec={activation/0: 'uniform:bits=8', gradient/0: fp16}"}));
  const auto& flows = planned.at("flows");
  REQUIRE(flows.size() == 4);
  for (const auto& flow : flows) CHECK(flow.at("encoded_bytes_are") == "exact");
  // 4 micro-batches of 8 x 32 values, each with a 9-byte header.
  CHECK(flows[0].at("raw_bytes_per_step") == 4096);
  CHECK(flows[0].at("encoded_bytes_per_step") == 1024 + 4 * 9);
  CHECK(flows[3].at("encoded_bytes_per_step") == 2048);
  CHECK(planned.at("parts").at(1).at("side") == "server");
  CHECK(planned.at("server_memory_bytes").at(0).get<std::uint64_t>() > 0);
  CHECK(planned.at("client_memory_bytes").get<std::uint64_t>() > 0);
}

TEST_CASE("a dry run refuses what a training run would refuse") {
  const Ended ended = ask(dryRun({"--set", "train.batchs=3"}));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("train.batchs is not a known key"));
}

}  // namespace
}  // namespace cleave::test
