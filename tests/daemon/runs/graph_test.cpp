// Exported models are trained, verified, resumed and refused by the real programs.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

// A model with batch norm, dropout and a residual block, made by python/tests/make_fixtures.py.
const std::string kModel = CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2";

Arguments graph(const std::string& cuts, const std::string& file = kModel) {
  return {"--set", "model={name: graph, file: " + file + ", cuts: " + cuts + "}"};
}

const Arguments kAllowed = {"--set", "models.allow=[graph]"};

TEST_CASE("a split exported model is bit-identical to the whole model") {
  const TemporaryFolder folder;
  const TestServer server(folder, kAllowed);
  int number = 0;
  const std::pair<std::string, std::string> kSchedules[] = {
      {"priority", "0"}, {"gpipe", "0"}, {"1f1b", "0"}, {"zb", "0"}, {"priority", "2"}};
  // In the last two cases, two tensors cross a cut.
  for (const std::string cuts :
       {"[conv, pool]", "[norm, dropout]", "[conv, block.0]", "[block, pool]"}) {
    for (const auto& [schedule, staleness] : kSchedules) {
      CAPTURE(cuts, schedule, staleness);
      const Ended ended =
          runClient("verify", folder.path("run" + std::to_string(++number)),
                    with(graph(cuts),
                         {"--server", server.address(), "--json", "--set", "train.batch=30",
                          "--set", "train.micro_batches=4", "--set", "train.schedule=" + schedule,
                          "--set", "train.staleness=" + staleness}));
      INFO(ended.output << ended.errors);
      REQUIRE(ended.code == 0);
      CHECK(nlohmann::json::parse(ended.output).at("equal") == true);
    }
  }
}

TEST_CASE("an exported model trains, and its weights keep their names") {
  const TemporaryFolder folder;
  const TestServer server(folder, kAllowed);
  const std::string run = folder.path("run");
  const Ended ended = runClient(
      "train", run,
      with(graph("[conv, block.0]"), {"--server", server.address(), "--set", "codec=auto"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const std::string model = readFile(run + "/model.safetensors");
  for (const char* name : {"conv.weight", "norm.running_mean", "norm.num_batches_tracked",
                           "block.0.bias", "classifier.bias"}) {
    CHECK_THAT(model, Contains('"' + std::string(name) + '"'));
  }
  // Both tensors that cross the second cut are recorded.
  const std::string transfers = readFile(run + "/transfers.csv");
  CHECK_THAT(transfers, Contains("activation/1.1") && Contains("gradient/1.1"));

  // The next run starts from these weights.
  const Ended next = runClient(
      "train", folder.path("next"),
      with(graph("[norm, pool]"),
           {"--server", server.address(), "--set", "weights.file=" + run + "/model.safetensors"}));
  INFO(next.errors);
  CHECK(next.code == 0);
}

// Found with EfficientNet-Lite0: the process of its body was ended in its first evaluation.
TEST_CASE(
    "evaluations with larger micro-batches than training need memory besides that of training") {
  const auto admitted = [](const std::string& evalBatch) {
    const Arguments batches = {"--set", "train={batch: 2048, micro_batches: 1}",
                               "--set", "data.train.size=2048",
                               "--set", "data.test.size=4096",
                               "--set", "eval.batch=" + evalBatch};
    const Arguments dryRun = {"train", "--config", configFile("synthetic.yaml"), "--dry-run",
                              "--json"};
    const nlohmann::json plan = askJson(with(with(dryRun, graph("[conv, pool]")), batches));
    return plan.at("server_memory_terms").at(0).at(1).at("bytes").get<double>();
  };
  constexpr double kSmall = 1 << 20;  // more than one sample needs
  CHECK(admitted("2048") - admitted("1024") < kSmall);
  CHECK(admitted("2049") - admitted("2048") > 10 * kSmall);
}

// modes.pt2 has 10 equal logits in evaluation, because its body then computes zeros; its training
// graph is that of modes_training.pt2, which has no evaluation graph
// (python/tests/make_fixtures.py).
TEST_CASE("evaluations, the best model and quality checks use the evaluation graph") {
  const TemporaryFolder folder;
  const TestServer server(folder, kAllowed);
  const auto train = [&](const std::string& name) {
    const std::string file = CLEAVE_SOURCE_DIR "/tests/data/" + name + ".pt2";
    const Ended ended =
        runClient("train", folder.path(name),
                  with(graph("[first, middle]", file),
                       {"--server", server.address(), "--set", "train.epochs=3", "--set",
                        "codec=uniform:bits=2", "--set",
                        "quality={every: 4, min_snr: -100, max_loss_increase: 1000}", "--set",
                        "keep.best=loss"}));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return nlohmann::json::parse(readFile(folder.path(name) + "/summary.json"));
  };
  const double kEqualLogits = std::log(10);
  const nlohmann::json modes = train("modes");
  for (const CsvRow& row : readCsv(folder.path("modes") + "/epochs.csv")) {
    CHECK(std::stod(row.at("eval_loss")) == Approx(kEqualLogits));
  }
  std::size_t evaluated = 0;  // batches of evaluations and of quality checks
  for (const CsvRow& row : readCsv(folder.path("modes") + "/steps.csv")) {
    if (row.at("phase") != "eval") continue;
    ++evaluated;
    CHECK(std::stod(row.at("loss")) == Approx(kEqualLogits));
  }
  CHECK(evaluated == 3 + 2 * modes.at("quality").at("checks").get<std::size_t>());
  CHECK(modes.at("kept").at("epoch") == 1);  // no later evaluation is better
  CHECK(modes.at("kept").at("value").get<double>() == Approx(kEqualLogits));
  CHECK(modes.at("quality").at("highest_loss_increase") == 0);

  // With the training graph, all of these differ.
  const nlohmann::json training = train("modes_training");
  const auto lossesOf = [&](const std::string& name) {
    std::vector<std::string> losses;
    for (const CsvRow& row : readCsv(folder.path(name) + "/epochs.csv")) {
      losses.push_back(row.at("train_loss"));
    }
    return losses;
  };
  CHECK(lossesOf("modes") == lossesOf("modes_training"));
  CHECK(training.at("kept").at("epoch") == 3);
  CHECK(training.at("kept").at("value").get<double>() < 2);
  CHECK(training.at("quality").at("highest_loss_increase") != 0);
}

TEST_CASE("a resumed run of an exported model is bit-identical to an uninterrupted one") {
  const TemporaryFolder folder;
  const TestServer server(folder, kAllowed);
  const Arguments arguments =
      with(graph("[norm, block.0]"),
           {"--server", server.address(), "--set", "checkpoint.every_steps=3", "--set",
            "train.optimizer={name: adam}", "--set", "train.epochs=12"});
  const Ended whole = runClient("train", folder.path("whole"), arguments);
  INFO(whole.errors);
  REQUIRE(whole.code == 0);
  const std::string run = folder.path("run");
  const Process client =
      startClient("train", run, arguments, {"/usr/bin/env", "CLEAVE_FAIL=committed:2:kill"});
  REQUIRE(client.wait(kPatience));
  REQUIRE_FALSE(fs::exists(run + "/summary.json"));
  const Ended resumed = ask({"train", "--resume", run});
  INFO(resumed.errors);
  REQUIRE(resumed.code == 0);
  CHECK(readFile(run + "/model.safetensors") ==
        readFile(folder.path("whole") + "/model.safetensors"));
}

TEST_CASE(
    "fine-tuning works with adapters, frozen parameters, low precision, and the best model kept") {
  const TemporaryFolder folder;
  const TestServer server(folder, kAllowed);
  const Arguments tuned =
      with({"--set",
            "model={name: graph, file: " + kModel +
                ", cuts: [norm, dropout], lora: {rank: 2, dropout: 0.1, targets: [classifier]}}"},
           {"--server", server.address(), "--set", "train.freeze=['*', '!block.*']", "--set",
            "train.groups=['*.bias:learning_rate=2,weight_decay=0']", "--set",
            "train.recompute=true", "--set", "precision={client: fp16, server: bf16}"});
  const Ended verified = runClient("verify", folder.path("verified"), with(tuned, {"--json"}));
  INFO(verified.errors);
  REQUIRE(verified.code == 0);
  CHECK(nlohmann::json::parse(verified.output).at("equal") == true);

  const std::string run = folder.path("run");
  const Ended ended = runClient(
      "train", run, with(tuned, {"--json", "--set", "keep.best=loss", "--set", "codec=none"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const nlohmann::json summary = nlohmann::json::parse(ended.output);
  CHECK_FALSE(summary.at("codec").contains("gradient/0"));  // the head is frozen
  CHECK(summary.at("codec").contains("gradient/1"));
  CHECK(summary.at("eval").contains("best_loss"));
  CHECK_THAT(readFile(run + "/model.safetensors"), Contains("classifier.lora_A.weight"));
  for (const char* name : {"/adapter", "/adapter.best"}) {
    const std::string adapter = readFile(run + name + "/adapter_model.safetensors");
    CHECK_THAT(adapter, Contains("base_model.model.classifier.lora_B.weight") &&
                            Contains("base_model.model.block.0.weight"));
    CHECK(nlohmann::json::parse(readFile(run + name + "/adapter_config.json")).at("r") == 2);
  }
  CHECK(fs::exists(run + "/model.best.safetensors"));
}

TEST_CASE("settings that conflict with the model or with each other are refused") {
  const TemporaryFolder folder;
  const auto refused = [&](const Arguments& settings, const char* code, const char* text) {
    const Ended ended =
        runClient("train", folder.path("run"), with(graph("[conv, pool]"), settings));
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(code) && Contains(text));
  };
  refused({"--set", "train.freeze=[conv]"}, "[unknown-parameter]", "did you mean *conv*?");
  refused({"--set", "train.groups=['clasifier.*:learning_rate=2']"}, "[unknown-parameter]",
          "train.groups");
  refused({"--set", "train.groups=['*:learning_rate=fast']"}, "[bad-optimizer-parameter]",
          "learning_rate=fast");
  refused({"--set", "train.freeze=['*']"}, "[nothing-to-train]", "!PATTERN");
  refused({"--set", "model.lora={rank: 2, targets: [conv]}"}, "[bad-lora]", "classifier");
  refused({"--set", "train.loss=mse"}, "[bad-target]", "train.loss");
  refused({"--set", "train.loss=cross_entropi"}, "[unknown-loss]", "cross_entropy");
  refused({"--set", "train.metrics=[rmse]"}, "[bad-metric]", "choose from");
  refused({"--set", "train.metrics=[auroc]"}, "[bad-metric]", "two classes");
  refused({"--set", "train.loss={class_weights: [1, 2]}"}, "[bad-target]", "2 class weights");
  refused({"--set", "precision.server=int8"}, "config-value", "bf16");
  refused({"--set", "keep.best=top1", "--set", "eval.every=0"}, "bad-config", "keep.best");
  refused({"--set", "keep.best=matthews"}, "bad-config", "add the metric to train.metrics");
  refused({"--set", "model.kuts=3"}, "config-unknown-key", "model.cuts");
  refused({"--set", "model.width=3"}, "config-unknown-key", "model.width");
}

TEST_CASE("`models show` lists the possible cuts") {
  const nlohmann::json model = askJson({"models", "show", kModel});
  CHECK(model.at("parameters") == 366);
  CHECK(model.at("inputs").at(0).at("shape") == "[samples, 1, 8, 8]");
  CHECK(model.at("cuts").size() == 6);
  // Parameters and products of the layers before and after two of the cuts.
  const auto checkShares = [&](const nlohmann::json& cut, const char* name, int before,
                               double products) {
    constexpr double kProducts = 64 * 4 * 9 + 64 * 4 * 36 + 160;
    CHECK(cut.at("names").at(0) == name);
    CHECK(cut.at("parameters_before") == before);
    CHECK(cut.at("parameters_after") == 366 - before);
    CHECK(cut.at("gflop_before").get<double>() == Approx(2 * products / 1e9));
    CHECK(cut.at("gflop_after").get<double>() == Approx(2 * (kProducts - products) / 1e9));
  };
  checkShares(model.at("cuts").at(0), "conv", 40, 64 * 4 * 9);
  checkShares(model.at("cuts").at(4), "pool", 196, 64 * 4 * 9 + 64 * 4 * 36);
  CHECK(model.at("cuts").at(2).at("names").at(0) == "block.0");
  CHECK(model.at("cuts").at(2).at("tensors") == 2);
  const Ended text = ask({"models", "show", kModel});
  CHECK_THAT(text.output, Contains("cut after") && Contains("pool") && !Contains("block.0") &&
                              Contains("--all"));
  CHECK_THAT(text.output, Contains("10.9 | 89.1 %") && Contains("53.6 | 46.4 %"));
  CHECK_THAT(ask({"models", "show", kModel, "--all"}).output, Contains("block.0"));
  CHECK(model.at("suggested_cuts") == nlohmann::json{"norm", "dropout"});
  CHECK(model.at("cuts").at(1).at("suggested") == true);
  CHECK_THAT(text.output, Contains("<- suggested") && Contains("cuts: [norm, dropout]}"));
}

TEST_CASE("a model file or cut that cannot be used is refused") {
  const TemporaryFolder folder;
  const std::string damaged = folder.path("damaged.pt2");
  const std::string whole = readFile(kModel);
  std::ofstream(damaged, std::ios::binary) << whole.substr(0, whole.size() / 2);
  const std::string foreign = folder.path("foreign.pt2");
  std::ofstream(foreign) << "not an archive";
  const auto train = [&](const Arguments& arguments) {
    return runClient("train", folder.path("run"), arguments);
  };
  checkError(train(graph("[conv, pool]", folder.path("none.pt2"))), 2,
             {"[no-model-file]", "model.file", "cleave_split.export"});
  checkError(train(graph("[conv, pool]", damaged)), 2, {"[bad-model-file]", "damaged"});
  checkError(train(graph("[conv, pool]", foreign)), 2, {"[bad-model-file]", "not a .pt2 archive"});
  checkError(train(graph("[conv, pol]")), 2, {"[bad-cuts]", "model.cuts", "did you mean pool"});
  checkError(train(graph("[pool, conv]")), 2, {"[bad-cuts]", "not after"});
  checkError(train(graph("[conv]")), 2, {"[bad-cuts]", "cleave-client models show"});
  checkError(train(with(graph("[conv, pool]"), {"--set", "data.classes=4"})), 2,
             {"[bad-output]", "model.file", "[samples, 4]", "data.classes"});
  checkError(train(with(graph("[conv, pool]"), {"--set", "data.shape=[3, 8, 8]"})), 2,
             {"[bad-input]", "model.file", "[1, 8, 8]", "data.channels: 1"});
  checkError(train(with(graph("[conv, pool]"), {"--set", "data.shape=[1, 9, 9]"})), 2,
             {"[bad-input]", "data.resize: 8"});
  checkError(train({"--set", "model.file=" + kModel}), 2, {"model.file"});
  checkError(ask({"models", "show", damaged}), 2, {"[bad-model-file]"});
}

TEST_CASE("a server that does not allow graphs refuses them") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "models.allow=[mlp]"});
  checkError(runClient("train", folder.path("run"),
                       with(graph("[conv, pool]"), {"--server", server.address()})),
             2, {"[model-not-allowed]", "models.allow"});
}

TEST_CASE("a run that needs more memory than the server has is refused for good") {
  const TemporaryFolder folder;
  const TestServer server(folder, with(kAllowed, {"--set", "limits.memory_mib=1"}));
  const auto start = std::chrono::steady_clock::now();
  checkError(runClient("train", folder.path("run"),
                       with(graph("[conv, pool]"), {"--server", server.address()})),
             2, {"[not-enough-memory]", "left of 1 MiB", "limits.memory_mib"});
  // The client does not retry for connect.retry_seconds.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(25));
}

}  // namespace
}  // namespace cleave::test
