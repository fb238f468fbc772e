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

nlohmann::json verify(const TemporaryFolder& folder, const std::string& name, Arguments arguments) {
  arguments.insert(
      arguments.end(),
      {"--json", "--steps", "2", "--set", "train.batch=30", "--set",
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

TEST_CASE("verify detects differences between the two computations") {
  const TemporaryFolder folder;
  // A server that waits instead of computing a forward returns meaningless values.
  const Ended ended = runClient("verify", folder.path("different"),
                                {"--json", "--steps", "1", "--set", "wait={F2: 1, B2: 1}"});
  CHECK(ended.code == 1);
  const auto result = nlohmann::json::parse(ended.output);
  CHECK(result.at("equal") == false);
  CHECK(result.at("compared").at("losses").at("largest_difference") > 0.0);
}

}  // namespace
}  // namespace cleave::test
