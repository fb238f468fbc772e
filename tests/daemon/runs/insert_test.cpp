// Learned inserts with the real programs: split training is bit-identical to the whole model, the
// inserts are trained, saved, continued and pre-trained, and wrong ones are refused.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/files/sha256.h"
#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const Arguments kGraphAllowed = {"--set", "models.allow=[mlp, small_cnn, graph]"};
const Arguments kCnn = {"--set", "model={name: small_cnn, width: 4, cuts: [4, 12]}"};
const Arguments kBoth = {"--set",
                         "insert=[{cut: 0, kind: conv, channels: 3, kernel: 2}, "
                         "{cut: 1, kind: residual, rank: 3}]"};

// Two inserts at the first cut, at the second one, or at both.
Arguments two(const std::string& outer) {
  return {
      "--set",
      "insert=[{cut: 0, kind: conv, channels: 3, kernel: 2}, {cut: 1, kind: linear, rank: 3}, " +
          outer + "]"};
}

TEST_CASE("models with inserts give bit-identical results") {
  const TemporaryFolder folder;
  const TestServer server(folder, kGraphAllowed);
  const Arguments graph = {"--set", "model={name: graph, file: " CLEAVE_SOURCE_DIR
                                    "/tests/data/tiny.pt2, cuts: [norm, pool]}"};
  const Arguments mlp = {"--set", "model={name: mlp, width: 16}"};
  const Arguments linear = {"--set", "insert={cut: 1, kind: linear, rank: 6}"};
  const Arguments decaying = {
      "--set",
      "insert=[{cut: 0, kind: decaying, rank: 4, every_steps: 1, decay: 0.75, l1: 0.01}, "
      "{cut: 1, kind: decaying, rank: 3, every_steps: 2, l1: 0.01}]"};
  int number = 0;
  for (const Arguments& model :
       {with(kCnn, kBoth), with(mlp, linear), with(graph, kBoth), with(kCnn, decaying)}) {
    for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
      CAPTURE(model.at(1), schedule);
      const Ended ended =
          runClient("verify", folder.path("run" + std::to_string(++number)),
                    with(model, {"--server", server.address(), "--json", "--steps", "3", "--set",
                                 "train.batch=30", "--set", "train.micro_batches=4", "--set",
                                 "train.schedule=" + schedule}));
      INFO(ended.errors);
      REQUIRE(ended.code == 0);
      const auto result = nlohmann::json::parse(ended.output);
      CHECK(result.at("equal") == true);
      CHECK(result.at("compared").at("weights/body").at("values") > 0);
    }
  }
  // An insert between two servers.
  const Ended ended =
      runClient("verify", folder.path("two"),
                {"--server", server.address() + "," + server.address(), "--json", "--set",
                 "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}", "--set",
                 "insert=[{cut: 1, kind: linear, rank: 6}, {cut: 2, kind: residual, rank: 3}]"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(nlohmann::json::parse(ended.output).at("equal") == true);
}

TEST_CASE("inserts are trained, saved, evaluated, resumed, and trained further") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Arguments arguments =
      with(with(kCnn, kBoth),
           {"--server", server.address(), "--set", "checkpoint.every_steps=3", "--set",
            "train.optimizer={name: adam}", "--set", "train.learning_rate=0.005", "--set",
            "train.epochs=6", "--set", "codec=none"});
  const std::string whole = folder.path("whole"), run = folder.path("run");
  const Ended ended = runClient("train", whole, with(arguments, {"--json"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(ended.output);
  for (const char* name :
       {"insert.0.encoder.weight", "insert.0.decoder.bias", "insert.1.decoder.outer.weight"}) {
    CHECK_THAT(readFile(whole + "/model.safetensors"), Contains(name));
  }

  const auto evaluated = askJson({"eval", whole, "--set", "threads.client=1"});
  const std::string model = whole + "/model.safetensors";
  CHECK(evaluated.at("weights_sha256") == hexOf(sha256Of(readFile(model))));
  CHECK(evaluated.at("steps") == summary.at("steps"));
  CHECK(evaluated.at("metrics").at("loss").get<double>() ==
        Approx(summary.at("eval").at("loss").get<double>()).epsilon(1e-5));

  const Process client = startClient("train", run, arguments, failingAt("committed:2:kill"));
  REQUIRE(client.wait(kPatience));
  REQUIRE(resume(run).code == 0);
  CHECK((readFile(run + "/model.safetensors") == readFile(whole + "/model.safetensors")));

  // A file with the inserts, and one without them.
  const std::string next = folder.path("next"), plain = folder.path("plain");
  CHECK(
      runClient("train", next, with(arguments, {"--set", "weights=" + run + "/model.safetensors"}))
          .code == 0);
  REQUIRE(runClient("train", plain, with(arguments, {"--set", "insert=[]"})).code == 0);
  const Ended added = runClient("train", folder.path("added"),
                                with(arguments, {"--set", "weights=" + plain + "/model.safetensors",
                                                 "--set", "train.freeze=['*']"}));
  INFO(added.errors);
  REQUIRE(added.code == 0);
  CHECK_THAT(added.errors, Contains("initialised: insert.0.decoder.bias"));
}

TEST_CASE("an insert whose rank shrinks sends fewer bytes, also when resumed at a drop") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  // 32 steps: ranks 32, 16, 8 and 4, for eight steps each.
  const Arguments arguments = {"--server",
                               server.address(),
                               "--set",
                               "insert=[{cut: 0, kind: decaying, rank: 32, every_steps: 8, l1: "
                               "0.001}, {cut: 1, kind: decaying, rank: 32, every_steps: 8}]",
                               "--set",
                               "codec=rans(channels(block:bits=4))",
                               "--set",
                               "train.batch=128",
                               "--set",
                               "train.micro_batches=1",
                               "--set",
                               "train.epochs=16"};
  const std::string whole = folder.path("whole");
  const Ended ended = runClient("train", whole, with(arguments, {"--json"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  std::map<std::string, std::map<int, double>> bytes;  // by flow and step
  for (const CsvRow& row : readCsv(whole + "/transfers.csv")) {
    if (row.at("phase") != "train" || row.at("flow") == "weights/body") continue;
    bytes[row.at("flow")][std::stoi(row.at("step"))] = std::stod(row.at("wire_bytes"));
  }
  REQUIRE(bytes.size() == 4);
  for (auto& [flow, ofStep] : bytes) {
    REQUIRE(ofStep.size() == 32);
    for (int step = 1; step <= 24; ++step) {
      CAPTURE(flow, step);
      CHECK(ofStep[step + 8] < 0.8 * ofStep[step]);
    }
  }

  const auto summary = nlohmann::json::parse(ended.output);
  const auto evaluated = askJson({"eval", whole, "--set", "threads.client=1"});
  CHECK(evaluated.at("metrics").at("top1").get<double>() ==
        Approx(summary.at("eval").at("top1").get<double>()).margin(0.05));

  // The newest checkpoint is before, at or after the first drop.
  for (const std::string step : {"7", "8", "9"}) {
    CAPTURE(step);
    const std::string run = folder.path("run-" + step);
    const Process client =
        startClient("train", run, with(arguments, {"--set", "checkpoint.every_steps=" + step}),
                    failingAt("committed:1:kill"));
    REQUIRE(client.wait(kPatience));
    REQUIRE(resume(run).code == 0);
    CHECK((readFile(run + "/model.safetensors") == readFile(whole + "/model.safetensors")));
  }
}

TEST_CASE("inserts that track their basis are bit-identical, also when resumed") {
  const TemporaryFolder folder;
  const TestServer server(folder, kGraphAllowed);
  const Arguments pca = {"--set",
                         "insert=[{cut: 0, kind: pca, channels: 3, kernel: 2, every_steps: 2}, "
                         "{cut: 1, kind: pca, channels: 3, every_steps: 3}]"};
  const std::string file = folder.path("inserts.safetensors");
  const auto fitted = askJson(with({"pretrain-inserts", "--config", configFile("synthetic.yaml"),
                                    "--output", file, "--set", "data.train.size=256"},
                                   with(kCnn, pca)));
  CHECK(fitted.at("steps") == 0);
  CHECK(fitted.at("inserts").at(1).at("rank") == 3);
  const Arguments run = with(with(kCnn, pca), {"--set", "weights=" + file, "--set",
                                               "checkpoint.every_steps=3", "--set", "codec=none"});
  const Arguments graph = with({"--set", "model={name: graph, file: " CLEAVE_SOURCE_DIR
                                         "/tests/data/tiny.pt2, cuts: [norm, pool]}"},
                               pca);
  const Arguments between = {"--set", "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}",
                             "--set", "insert=[{cut: 1, kind: pca, channels: 6, every_steps: 1}]"};
  const std::string one = server.address();
  int number = 0;
  for (const Arguments& model : {with(run, {"--server", one}), with(graph, {"--server", one}),
                                 with(between, {"--server", one + "," + one})}) {
    CAPTURE(number);
    const Ended verified = runClient("verify", folder.path("verified" + std::to_string(++number)),
                                     with(model, {"--json", "--steps", "5"}));
    INFO(verified.output << verified.errors);
    REQUIRE(verified.code == 0);
    CHECK(nlohmann::json::parse(verified.output).at("equal") == true);
  }

  const Arguments training = with(run, {"--server", one, "--set", "train.epochs=4"});
  const std::string whole = folder.path("whole"), resumed = folder.path("resumed");
  const Ended ended = runClient("train", whole, training);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((readFile(whole + "/model.safetensors") != readFile(file)));
  const Process client = startClient("train", resumed, training, failingAt("committed:1:kill"));
  REQUIRE(client.wait(kPatience));
  REQUIRE(resume(resumed).code == 0);
  CHECK((readFile(resumed + "/model.safetensors") == readFile(whole + "/model.safetensors")));
  const auto evaluated = askJson({"eval", whole, "--set", "threads.client=1"});
  CHECK(evaluated.at("metrics").contains("loss"));
}

TEST_CASE("bases count as control bytes, up at the first cut and down at the second one") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  constexpr double kBasis = 96 * 128 * 2;  // bytes
  constexpr int kTrained = 12;
  // All control bytes of a run, up and down.
  const auto controlBytes = [&](int everySteps) {
    const std::string run = folder.path("every-" + std::to_string(everySteps));
    const std::string sizes = ", kind: pca, channels: 96, every_steps: ";
    const Ended ended = runClient(
        "train", run,
        {"--server", server.address(), "--set", "model={name: mlp, width: 128}", "--set",
         "insert=[{cut: 0" + sizes + std::to_string(everySteps) + "}, {cut: 1" + sizes +
             std::to_string(4 * everySteps) + "}]",
         "--set", "train.epochs=4", "--set", "train.max_steps=" + std::to_string(kTrained)});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    double up = 0, down = 0;
    for (const CsvRow& row : readCsv(run + "/steps.csv")) {
      up += std::stod(row.at("control_up_bytes"));
      down += std::stod(row.at("control_down_bytes"));
    }
    return std::pair(up, down);
  };
  const auto [up, down] = controlBytes(1);
  const auto [upOfNone, downOfNone] = controlBytes(kTrained + 1);
  constexpr double kOthers = 4096;  // other messages, whose number depends on time
  CHECK(up - upOfNone == Approx(kTrained * kBasis).margin(kOthers));
  CHECK(down - downOfNone == Approx(kTrained / 4 * kBasis).margin(kOthers));
}

// ---- Two inserts at a cut ----

TEST_CASE("two inserts at a cut are fitted in order, bit-identical, and resumed exactly") {
  const TemporaryFolder folder;
  const TestServer server(folder, kGraphAllowed);
  const Arguments graph = {"--set", "model={name: graph, file: " CLEAVE_SOURCE_DIR
                                    "/tests/data/tiny.pt2, cuts: [norm, pool]}"};
  const Arguments outer =
      two("{cut: 0, kind: pca, channels: 2, every_steps: 2}, {cut: 1, kind: residual, rank: 2}");
  const std::string file = folder.path("inserts.safetensors");
  const auto fitted =
      askJson(with({"pretrain-inserts", "--config", configFile("synthetic.yaml"), "--output", file,
                    "--set", "data.train.size=256", "--set", "train.max_steps=2"},
                   with(kCnn, outer)));
  CHECK(fitted.at("steps") == 2);  // of the residual insert
  const auto& inserts = fitted.at("inserts");
  REQUIRE(inserts.size() == 4);
  CHECK(inserts[0].at("error_at_cut") == inserts[0].at("error"));
  CHECK(inserts[2].at("features") == 3);
  CHECK(inserts[2].at("error_at_cut").get<double>() > inserts[0].at("error").get<double>());
  CHECK_THAT(readFile(file), Contains("insert.0.2.encoder.covariance"));

  const Arguments run = with(with(kCnn, outer), {"--set", "weights=" + file});
  const Arguments trained = two("{cut: 1, kind: linear, rank: 2}, {cut: 0, kind: linear, rank: 2}");
  int number = 0;
  for (const Arguments& model : {run, with(graph, outer), with(kCnn, trained)}) {
    CAPTURE(number);
    const Ended verified =
        runClient("verify", folder.path("verified" + std::to_string(++number)),
                  with(model, {"--server", server.address(), "--json", "--steps", "5"}));
    INFO(verified.output << verified.errors);
    REQUIRE(verified.code == 0);
    CHECK(nlohmann::json::parse(verified.output).at("equal") == true);
  }

  const Arguments training =
      with(run, {"--server", server.address(), "--set", "checkpoint.every_steps=3", "--set",
                 "codec=none", "--set", "train.epochs=4"});
  const std::string whole = folder.path("whole"), resumed = folder.path("resumed");
  const Ended ended = runClient("train", whole, with(training, {"--json"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const Process client = startClient("train", resumed, training, failingAt("committed:1:kill"));
  REQUIRE(client.wait(kPatience));
  REQUIRE(resume(resumed).code == 0);
  CHECK((readFile(resumed + "/model.safetensors") == readFile(whole + "/model.safetensors")));
  const auto summary = nlohmann::json::parse(ended.output);
  const auto evaluated = askJson({"eval", whole, "--set", "threads.client=1"});
  CHECK(evaluated.at("metrics").at("loss").get<double>() ==
        Approx(summary.at("eval").at("loss").get<double>()).epsilon(1e-5));
}

TEST_CASE("a dry run shows both inserts of a cut, and what crosses it") {
  const auto plan = askJson({"train", "--dry-run", "--config", configFile("inserts.yaml"), "--set",
                             "insert=[{cut: 0, kind: conv, channels: 8, kernel: 2}, "
                             "{cut: 0, kind: conv, channels: 4, kernel: 3}]"});
  const auto& inner = plan.at("inserts").at(0);
  const auto& outer = plan.at("inserts").at(1);
  CHECK(inner.at("encoded_shape") == nlohmann::json({8, 7, 7}));
  CHECK(outer.at("shape") == nlohmann::json({8, 7, 7}));
  CHECK(outer.at("encoded_shape") == nlohmann::json({4, 3, 3}));
  CHECK(inner.at("parameters") == 2 * 16 * 8 * 4 + 16 + 8);
  CHECK(outer.at("parameters") == 2 * 8 * 4 * 9 + 8 + 4);
  CHECK(plan.at("flows").at(0).at("micro_batch_shape") == nlohmann::json({32, 4, 3, 3}));
  const auto& flow = plan.at("flows").at(0);
  CHECK(flow.at("raw_bytes_per_step") == plan.at("batch").get<int>() * 4 * 3 * 3 * sizeof(float));
}

TEST_CASE("codecs are chosen for a model with inserts") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Ended ended =
      runClient("train", folder.path("run"),
                with(with(kCnn, kBoth), {"--server", server.address(), "--json", "--set",
                                         "codec=auto", "--set", "train.max_steps=2"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(nlohmann::json::parse(ended.output).at("steps") == 2);
}

TEST_CASE("inserts are trained beside adapters, which PEFT's format then cannot store") {
  const TemporaryFolder folder;
  const TestServer server(folder, kGraphAllowed);
  const Arguments tuned =
      with({"--set",
            "model={name: graph, file: " CLEAVE_SOURCE_DIR
            "/tests/data/tiny.pt2, cuts: [norm, pool], lora: {rank: 2, targets: "
            "[classifier]}}",
            "--server", server.address()},
           kBoth);
  const Ended verified = runClient("verify", folder.path("verified"), with(tuned, {"--json"}));
  INFO(verified.errors);
  REQUIRE(verified.code == 0);
  const auto compared = nlohmann::json::parse(verified.output).at("compared");
  CHECK(compared.at("gradients/body").at("values") > 0);  // only inserts are trained there
  const Ended ended = runClient("train", folder.path("run"), tuned);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("no folder 'adapter'"));
  CHECK_FALSE(std::ifstream(folder.path("run") + "/adapter/adapter_config.json").is_open());
}

TEST_CASE("inserts are fitted with the body on a server, to the same bits") {
  const TemporaryFolder folder;
  const TestServer server(folder, kGraphAllowed);
  const Arguments graph = {"--set", "model={name: graph, file: " CLEAVE_SOURCE_DIR
                                    "/tests/data/tiny.pt2, cuts: [norm, pool]}"};
  const Arguments dropout = {
      "--set", "model={name: small_cnn, width: 4, cuts: [4, 12], dropout: 0.25}",
      "--set", "train.groups=['insert.*:learning_rate=0.1']",
      "--set", "train.staleness=1"};
  const Arguments nested =
      two("{cut: 1, kind: pca, channels: 2}, {cut: 0, kind: residual, rank: 2}");
  const Arguments frozen = {"--set", "insert={cut: 1, kind: linear, rank: 3, correction: 0.01}",
                            "--set", "train.freeze=[insert.*]"};
  int number = 0;
  // The third one begins with the file of the first one, whose inserts are fitted again.
  const std::string first = folder.path("served-1");
  for (const Arguments& model :
       {with(kCnn, kBoth), with(graph, nested),
        with(kCnn, with(kBoth, {"--set", "weights=" + first})), with(dropout, frozen)}) {
    const std::string name = std::to_string(++number);
    CAPTURE(name);
    const std::string own = folder.path("own-" + name), served = folder.path("served-" + name);
    const Arguments fitting = with({"pretrain-inserts", "--config", configFile("synthetic.yaml"),
                                    "--set", "data.train.size=256", "--set", "train.max_steps=3",
                                    "--set", "threads.client=1", "--samples", "96"},
                                   model);
    const auto fitted = askJson(with(fitting, {"--output", own}));
    const auto answer = askJson(with(fitting, {"--output", served, "--server", server.address()}));
    CHECK(fitted.at("inserts") == answer.at("inserts"));
    CHECK(fitted.at("steps") == answer.at("steps"));
    CHECK((readFile(served) == readFile(own)));
  }
  const Arguments fitting = {"pretrain-inserts", "--config", configFile("synthetic.yaml"),
                             "--output", folder.path("none")};
  checkError(ask(with(fitting, {"--server", server.address() + "," + server.address(), "--set",
                                "model={name: mlp, width: 16, depth: 4, cuts: [2, 4, 8]}", "--set",
                                "insert={cut: 1, kind: linear, rank: 6}"})),
             kWrongUse, {"[several-servers]", "omit --server"});
  checkError(
      ask(with(with(fitting, {"--server", "127.0.0.1:1", "--set", "connect.retry_seconds=0"}),
               with(kCnn, kBoth))),
      kFailedRun, {"127.0.0.1:1"});
  CHECK_FALSE(std::filesystem::exists(folder.path("none")));
  // The server has no part in an insert at the first cut.
  CHECK(ask(with(with(fitting, {"--server", "127.0.0.1:1", "--set",
                                "insert={cut: 0, kind: linear, rank: 2}"}),
                 kCnn))
            .code == 0);
}

TEST_CASE("a dry run shows the shapes and the bytes at cuts with inserts") {
  const auto plan = askJson({"train", "--dry-run", "--config", configFile("inserts.yaml")});
  const auto& insert = plan.at("inserts").at(0);
  CHECK(insert.at("shape") == nlohmann::json({16, 14, 14}));
  CHECK(insert.at("encoded_shape") == nlohmann::json({8, 7, 7}));
  CHECK(insert.at("bytes_per_sample") == 16 * 14 * 14 * 4);
  CHECK(insert.at("encoded_bytes_per_sample") == 8 * 7 * 7 * 4);
  CHECK(insert.at("parameters") == 2 * 16 * 8 * 4 + 16 + 8);
  CHECK(plan.at("flows").at(0).at("micro_batch_shape") == nlohmann::json({32, 8, 7, 7}));
  const Ended text = ask({"train", "--dry-run", "--config", configFile("inserts.yaml")});
  CHECK_THAT(text.output, Contains("insert at cut 0: conv, [16, 14, 14] -> [8, 7, 7]") &&
                              Contains("cut 0: [batch, 8, 7, 7]"));
}

TEST_CASE("inserts are fitted alone, and a run begins with them, frozen and with corrections") {
  const TemporaryFolder folder;
  const std::string file = folder.path("inserts.safetensors");
  const auto fitting = [&](const Arguments& more, const std::string& output) {
    return with(with({"pretrain-inserts", "--overwrite", "--config", configFile("synthetic.yaml"),
                      "--set", "data.train.size=256", "--output", output},
                     kCnn),
                more);
  };
  // Residual inserts are trained after the principal components are known.
  const Arguments learning = {"--set", "train.optimizer=adam", "--set", "train.learning_rate=0.01"};
  const auto trained = [&](const std::string& setting) {
    return askJson(with(fitting(kBoth, file), with(learning, {"--set", setting})));
  };
  const auto first = trained("train.max_steps=1"), last = trained("train.epochs=8");
  CHECK(first.at("steps") == 1);
  CHECK(last.at("steps") > 1);
  CHECK(last.at("inserts").at(1).at("error").get<double>() <
        first.at("inserts").at(1).at("error").get<double>());
  CHECK(
      runClient("train", folder.path("run"), with(kCnn, with(kBoth, {"--set", "weights=" + file})))
          .code == 0);

  const Arguments frozen = {"--set",
                            "insert=[{cut: 0, kind: conv, channels: 3, kernel: 2, correction: "
                            "0.01}, {cut: 1, kind: linear, rank: 3, correction: 0.01}]",
                            "--set", "train.freeze=[insert.*]"};
  const Ended text = ask(fitting(frozen, file));
  REQUIRE(text.code == 0);
  CHECK_THAT(text.output, Contains("cut 0: 3 of 16 features, error 0.") &&
                              Contains("cut 1: 3 of 16 features, error 0.") &&
                              Contains("--set weights.file=" + file));
  const auto fitted = askJson(fitting(frozen, file));
  CHECK(fitted.at("steps") == 0);
  const auto& insert = fitted.at("inserts").at(0);
  CHECK(insert.at("error") == last.at("inserts").at(0).at("error"));
  CHECK(insert.at("ranks").at("0.1") <= insert.at("ranks").at("0.003"));

  const TestServer server(folder);
  const Arguments run =
      with(with(kCnn, frozen), {"--server", server.address(), "--set", "weights=" + file, "--set",
                                "data.train.size=256", "--set", "checkpoint.every_steps=3"});
  const Ended verified = runClient("verify", folder.path("verified"), with(run, {"--json"}));
  INFO(verified.errors);
  REQUIRE(verified.code == 0);
  CHECK(nlohmann::json::parse(verified.output).at("equal") == true);
  const std::string whole = folder.path("whole"), resumed = folder.path("resumed");
  REQUIRE(runClient("train", whole, run).code == 0);
  const Process client = startClient("train", resumed, run, failingAt("committed:1:kill"));
  REQUIRE(client.wait(kPatience));
  REQUIRE(resume(resumed).code == 0);
  CHECK((readFile(resumed + "/model.safetensors") == readFile(whole + "/model.safetensors")));

  const std::string diverged = folder.path("diverged");
  checkError(ask(with(fitting(kBoth, diverged),
                      {"--set", "train.optimizer=sgd", "--set", "train.learning_rate=1.0e6"})),
             kFailedRun, {"[non-finite]", "the insert at cut 1", "train.learning_rate.peak"});
  CHECK_FALSE(std::filesystem::exists(diverged));
  checkError(ask({"pretrain-inserts", "--config", configFile("synthetic.yaml"), "--output",
                  folder.path("none")}),
             kWrongUse, {"[bad-insert]", "has no inserts"});
}

TEST_CASE("wrong inserts are refused with their line") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& inserts, const std::vector<std::string>& says) {
    const std::string path = folder.path("config.yaml");
    std::ofstream(path) << "model: {name: small_cnn, width: 4, cuts: [4, 13]}\n"
                        << "data: {format: synthetic, shape: [1, 8, 8], classes: 3}\ninsert:\n"
                        << inserts;
    CAPTURE(inserts);
    checkError(ask({"train", "--dry-run", "--config", path}), kWrongUse, says);
  };
  refused("  - {cut: 0, kind: linear, rank: 2}\n  - {cut: 5, kind: linear, rank: 2}\n",
          {"[bad-insert]", "config.yaml:5: insert[1].cut", "no such cut", "numbered from 0 to 1"});
  refused("  cut: 1\n  kind: conv\n  channels: 2\n",
          {"[bad-insert]", "config.yaml:5: insert[0].kind", "use kind: linear"});
  refused("  cut: 0\n  kind: linear\n  rank: 5\n",
          {"[bad-insert]", "config.yaml:6: insert[0].rank", "more than the 4 features"});
  refused("  cut: 0\n  kind: lineer\n  rank: 5\n", {"config.yaml:5: insert[0].kind", "linear"});
  refused("  cut: 0\n  kind: linear\n", {"insert[0].rank is missing"});
  refused("  cut: 0\n  kind: linear\n  rank: 2\n  kernel: 3\n",
          {"config.yaml:7: insert[0].kernel", "has no effect"});
  refused(
      "  [{cut: 0, kind: linear, rank: 2}, {cut: 0, kind: linear, rank: 2}, {cut: 0, kind: "
      "linear, rank: 2}]\n",
      {"[bad-insert]", "insert[2].cut", "already has 2 inserts"});
  refused("  [{cut: 0, kind: pca, channels: 2}, {cut: 0, kind: linear, rank: 1}]\n",
          {"[bad-insert]", "insert[1].cut", "follows an insert of kind pca", "last"});
  refused("  {cut: 0, kind: pca, channels: 2}\ntrain: {staleness: 1}\n",
          {"[bad-insert]", "set train.staleness to 0"});
  refused("  conv\n", {"config.yaml:3: insert", "a map of keys"});
  refused("  cut: 0\n  kind: decaying\n  rank: 2\n", {"insert[0].every_steps is missing"});
  refused("  cut: 0\n  kind: decaying\n  rank: 2\n  every_steps: 5\n  min_rank: 3\n",
          {"[bad-insert]", "config.yaml:8: insert[0].min_rank", "more than the rank of 2"});
  refused("  cut: 0\n  kind: decaying\n  rank: 2\n  every_steps: 5\n  decay: 2\n",
          {"config.yaml:8: insert[0].decay"});
  refused("  cut: 0\n  kind: decaying\n  rank: 2\n  every_steps: 5\ntrain: {freeze: [insert.*]}\n",
          {"[bad-insert]", "insert.0.encoder.weight is frozen", "train.freeze"});
  refused("  cut: 0\n  kind: linear\n  rank: 2\n  correction: 1.0e-4\n",
          {"[bad-insert]", "insert.0.decoder.weight is trained", "add insert.* to train.freeze"});
  refused(
      "  cut: 0\n  kind: linear\n  rank: 2\n  correction: 1.0e-4\n"
      "train: {freeze: [insert.*]}\nprecision: {client: fp16}\n",
      {"[bad-insert]", "config.yaml:7: insert[0].correction", "loss scaling"});

  const TestServer server(folder, kGraphAllowed);
  checkError(runClient("train", folder.path("run"),
                       {"--server", server.address(), "--set",
                        "model={name: graph, file: " CLEAVE_SOURCE_DIR
                        "/tests/data/tiny.pt2, cuts: [block.0, pool]}",
                        "--set", "insert={cut: 0, kind: linear, rank: 2}"}),
             kWrongUse, {"[bad-insert]", "2 fp32 tensors cross this cut", "insert[0].cut"});
}

}  // namespace
}  // namespace cleave::test
