// Training on image files with augmentation: results are bit-identical for any timing, and errors
// name the file.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"
#include "tests/support/files/cifar_files.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

Arguments cifar(const std::string& folder, const Arguments& more = {}) {
  Arguments arguments = {"--config", configFile("cifar10.yaml"),
                         "--set",    "data.folder=" + folder,
                         "--set",    "model={name: small_cnn, width: 4}",
                         "--set",    "data.resize=40",
                         "--set",    "train.batch=8",
                         "--set",    "train.epochs=2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Ended train(const Arguments& more) {
  Arguments arguments = {clientProgram(), "train", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return finish(Process::start(arguments));
}

std::string weightsAfter(const std::string& runFolder, Arguments arguments) {
  arguments.insert(arguments.end(), {"--run-dir", runFolder});
  const Ended ended = train(arguments);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(nlohmann::json::parse(ended.output).at("steps") == 2 * 3);
  return readTensors(runFolder + "/model.safetensors");
}

TEST_CASE("a codec that sends how samples have changed is refused with augmentation") {
  const CifarFolder files("changes");
  files.writeCifar10(4);
  const TemporaryFolder folder;
  const Arguments delta = {"--set", "codec={activation/0: delta(block:bits=4)}"};
  const Ended refused = train(cifar(files.folder(), delta));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Contains("[bad-codec-spec]") && Contains("data.augment={}"));
  weightsAfter(folder.path("plain"),
               cifar(files.folder(), with(delta, {"--set", "data.augment={}"})));
}

TEST_CASE(
    "augmented training is bit-identical with every schedule, and differs from plain training") {
  const CifarFolder files("training");
  files.writeCifar10(4);
  const TemporaryFolder folder;
  const std::string first = weightsAfter(folder.path("first"), cifar(files.folder()));
  CHECK(weightsAfter(folder.path("again"), cifar(files.folder())) == first);
  CHECK(weightsAfter(folder.path("1f1b"),
                     cifar(files.folder(), {"--set", "train.schedule=1f1b"})) == first);
  CHECK(weightsAfter(folder.path("plain"), cifar(files.folder(), {"--set", "data.augment={}"})) !=
        first);
}

TEST_CASE("missing data is reported with its source") {
  const TemporaryFolder folder;
  for (const std::string name : {"cifar10", "cifar100"}) {
    const Ended ended =
        train({"--config", configFile(name + ".yaml"), "--set", "model={name: small_cnn}", "--set",
               "data.folder=" + folder.path("none"), "--run-dir", folder.path("run")});
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(folder.path("none")) && Contains("there is no such file") &&
                                 Contains("from the dataset's home page, and set data.folder"));
  }
}

TEST_CASE("invalid keys of images are reported with their lines") {
  const CifarFolder files("keys");
  files.writeCifar10(1);
  for (const auto& [set, fault] : {std::pair{"data.mean=[0.1, 0.2]", "data.mean: 2 values"},
                                   std::pair{"data.resize=5000", "0…4096"},
                                   std::pair{"data.augment.flop=true", "did you mean"},
                                   std::pair{"data.augment.crop_padding=40", "32 x 32"},
                                   std::pair{"data.labels=coarse", "config-unknown-key"}}) {
    const Ended ended = train(cifar(files.folder(), {"--dry-run", "--set", set}));
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(fault));
  }
}

}  // namespace
}  // namespace cleave::test
