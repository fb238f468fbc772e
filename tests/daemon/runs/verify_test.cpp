// Splitting a model does not change results: `verify` with the real programs, for every model,
// number of micro-batches and schedule.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

// Both models have dropout. Batches of 30 samples divide unevenly into 4, 7 and 8 micro-batches.
// The test set has 13 samples.
const std::vector<Arguments> kModels = {
    {"--set", "model={name: mlp, width: 16, depth: 2, dropout: 0.3}"},
    {"--set", "model={name: small_cnn, width: 4, dropout: 0.3}"},
};

nlohmann::json verify(const TemporaryFolder& folder, const std::string& name, Arguments arguments,
                      const std::string& steps = "2") {
  arguments.insert(
      arguments.end(),
      {"--json", "--steps", steps, "--set", "train.batch=30", "--set",
       "train.optimizer={name: sgd, momentum: 0.9, nesterov: true, weight_decay: 0.001}"});
  const Ended ended = runClient("verify", folder.path(name), arguments);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

TEST_CASE("split and whole model give bit-identical results") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  for (std::size_t model = 0; model < kModels.size(); ++model) {
    for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
      for (const std::string microBatches : {"1", "2", "4", "7", "8"}) {
        CAPTURE(model, schedule, microBatches);
        Arguments arguments = kModels[model];
        arguments.insert(arguments.end(),
                         {"--server", server.address(), "--set", "train.schedule=" + schedule,
                          "--set", "train.micro_batches=" + microBatches});
        const auto result =
            verify(folder, std::to_string(model) + schedule + microBatches, arguments);
        CHECK(result.at("equal") == true);
        for (const char* what : {"losses", "gradients/head", "gradients/body", "gradients/tail",
                                 "weights/head", "weights/body", "weights/tail"}) {
          INFO(what);
          CHECK(result.at("compared").at(what).at("values") > 0);
          CHECK(result.at("compared").at(what).at("largest_difference") == 0.0);
        }
      }
    }
  }
}

TEST_CASE("with staleness, steps that overlap are bit-identical to the whole model's") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  // Micro-batches and staleness: PipeDream has one micro-batch per step, PipeDream-2BW a staleness
  // of 1.
  const std::pair<std::string, std::string> kCases[] = {{"1", "3"}, {"4", "1"}, {"3", "2"}};
  for (std::size_t model = 0; model < kModels.size(); ++model) {
    for (const auto& [microBatches, staleness] : kCases) {
      for (const std::string schedule : {"priority", "1f1b", "zb"}) {
        CAPTURE(model, microBatches, staleness, schedule);
        Arguments arguments = kModels[model];
        arguments.insert(
            arguments.end(),
            {"--server", server.address(), "--set", "train.schedule=" + schedule, "--set",
             "train.micro_batches=" + microBatches, "--set", "train.staleness=" + staleness});
        const auto result =
            verify(folder, std::to_string(model) + schedule + microBatches + staleness, arguments,
                   /*steps=*/"8");
        CHECK(result.at("equal") == true);
        CHECK(result.at("compared").at("gradient norm").at("values") == 8);
      }
    }
  }
}

TEST_CASE("staleness that a schedule, a codec or a precision does not support is refused") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name, const Arguments& arguments) {
    const Ended ended =
        runClient("train", folder.path(name), with({"--set", "train.staleness=1"}, arguments));
    CHECK(ended.code == 2);
    return ended.errors;
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refused("gpipe", {"--set", "train.schedule=gpipe"}), Contains("bad-staleness"));
  CHECK_THAT(refused("power",
                     {"--set", "codec=power:rank=2", "--set", "model={name: small_cnn, width: 4}"}),
             Contains("bad-staleness"));
  CHECK_THAT(refused("delta", {"--set", "codec={activation/0: 'delta(block:bits=4)'}"}),
             Contains("bad-staleness"));
  CHECK_THAT(refused("fp16", {"--set", "precision.server=fp16"}), Contains("bad-staleness"));
}

TEST_CASE("mobilenet_v2, clipping and every optimizer give bit-identical results") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  for (const std::string optimizer : {"sgd", "adam", "adamw"}) {
    for (const std::string microBatches : {"1", "3"}) {
      CAPTURE(optimizer, microBatches);
      const auto result =
          verify(folder, optimizer + microBatches,
                 {"--server", server.address(), "--set", "model={name: mobilenet_v2}", "--set",
                  "data.shape=[3, 56, 56]", "--set", "train.batch=8", "--set", "eval.batch=8",
                  "--set", "train.micro_batches=" + microBatches, "--set",
                  "train.optimizer={name: " + optimizer + "}", "--set", "train.clip_norm=0.5"});
      CHECK(result.at("equal") == true);
      CHECK(result.at("compared").at("gradient norm").at("values") == 2);
      CHECK(result.at("compared").at("weights/body").at("values") > 2000000);
    }
  }
}

TEST_CASE("verify finds a wrong update of the body, and names the tensor and the step") {
  const TemporaryFolder folder;
  // The second of the three updates of each run: a call that fails counts for one entry only.
  const TestServer server(folder, {}, "store", failingAt("body-update:2:eio,body-update:4:eio"));
  const Arguments arguments = with(
      kModels[0], {"--server", server.address(), "--steps", "3", "--set", "train.micro_batches=2"});
  const Ended printed = runClient("verify", folder.path("json"), with(arguments, {"--json"}));
  INFO(printed.errors);
  REQUIRE(printed.code == 1);
  const auto result = nlohmann::json::parse(printed.output);
  CHECK(result.at("equal").get<bool>() == false);
  CHECK(result.at("passed").get<bool>() == false);
  const auto placeOf = [&](const char* what) {
    INFO(what);
    CHECK(result.at("compared").at(what).at("equal").get<bool>() == false);
    CHECK(result.at("compared").at(what).at("largest_difference").get<double>() > 0);
    return result.at("compared").at(what).at("where").get<std::string>();
  };
  // The gradients of the first two steps are those of the whole model.
  using Catch::Matchers::EndsWith;
  using Catch::Matchers::StartsWith;
  CHECK_THAT(placeOf("gradients/body"), EndsWith("weight in step 3") || EndsWith("bias in step 3"));
  CHECK_THAT(placeOf("gradient norm"), EndsWith("step 3"));
  CHECK_THAT(placeOf("losses"), StartsWith("micro-batch "));
  CHECK_THAT(placeOf("weights/body"), EndsWith("weight") || EndsWith("bias"));

  const Ended text = runClient("verify", folder.path("text"), arguments);
  INFO(text.output << text.errors);
  CHECK(text.code == 1);
  CHECK_THAT(text.output, Catch::Matchers::Contains("largest difference") &&
                              Catch::Matchers::Contains(" in step 3\n") &&
                              EndsWith("split and whole DIFFER\n"));
}

TEST_CASE("verify starts and stops its own server if none is given") {
  const TemporaryFolder folder;
  CHECK(verify(folder, "own", kModels[1]).at("equal") == true);
}

TEST_CASE("verify compares with lossless codecs, ignoring the configured ones") {
  const TemporaryFolder folder;
  Arguments arguments = kModels[0];
  arguments.insert(arguments.end(), {"--set", "codec=uniform:bits=2"});
  CHECK(verify(folder, "lossless", arguments).at("equal") == true);
}

TEST_CASE("with device_bits: fast, verify needs a tolerance, and a resumed run warns") {
  const TemporaryFolder folder;
  Arguments fast = kModels[0];
  fast.insert(fast.end(), {"--set", "device_bits=fast"});
  const Ended refused = runClient("verify", folder.path("refused"), fast);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Catch::Matchers::Contains("device_bits is fast") &&
                                 Catch::Matchers::Contains("--tolerance 1e-3"));
  Arguments tolerant = fast;
  tolerant.insert(tolerant.end(), {"--tolerance", "1e-6"});
  CHECK(verify(folder, "tolerant", tolerant).at("passed") == true);
  const std::string run = folder.path("run");
  fast.insert(fast.end(), {"--set", "train.max_steps=1"});
  REQUIRE(runClient("train", run, fast).code == 0);
  CHECK_THAT(readFile(run + "/config.yaml"), Catch::Matchers::Contains("device_bits: fast"));
  const Ended resumed = resume(run, {"--set", "train.max_steps=2"});
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.errors, Catch::Matchers::Contains("device_bits is fast"));
}

}  // namespace
}  // namespace cleave::test
