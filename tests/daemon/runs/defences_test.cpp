// Defences against the server, in whole runs.
#include <catch2/catch.hpp>
#include <filesystem>

#include "common/core/durable.h"
#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const std::vector<std::string> kDefences = {
    "{kind: noise, deviation: 0.3, clip: 5}",
    "{kind: distance_correlation, weight: 5}",
    "{kind: max_norm}",
    "{kind: gradient_noise, deviation: 0.5}",
    "[{kind: noise, deviation: 0.3}, {kind: distance_correlation, weight: 1}, {kind: max_norm}]",
};

class Defended {
 public:
  Defended() { writeNewFile(folder_.path("key"), std::string(64, '7') + "\n", kPrivateFile); }
  Arguments with(const std::string& defence) const {
    return {"--set", "privacy.defence=" + defence, "--set",
            "privacy.key_file=" + folder_.path("key")};
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string tensors(const std::string& name) const {
    return readTensors(path(name) + "/model.safetensors");
  }

 private:
  const TemporaryFolder folder_;
};

TEST_CASE("with a defence, the split model has the bits of the whole one") {
  const Defended run;
  const Arguments image = {"--set", "data.shape=[1, 16, 16]", "--set",
                           "model={name: small_cnn, width: 4}"};
  for (std::size_t n = 0; n < kDefences.size(); ++n) {
    CAPTURE(kDefences[n]);
    for (const Arguments& more : {Arguments(), image}) {
      const auto result = verifySteps(run.path(std::to_string(n) + (more.empty() ? "a" : "b")),
                                      cleave::test::with(run.with(kDefences[n]), more));
      CHECK(result.at("equal") == true);
    }
  }
}

TEST_CASE("a resumed run has the draws of an undisturbed one, and a defence changes the model") {
  const Defended run;
  const Arguments training = {"--set", "checkpoint.every_steps=2", "--set", "train.epochs=2"};
  const std::string& all = kDefences.back();
  REQUIRE(runClient("train", run.path("plain"), training).code == 0);
  const Arguments more = with(run.with(all), training);
  REQUIRE(runClient("train", run.path("whole"), more).code == 0);
  REQUIRE(
      startClient("train", run.path("killed"), more, failingAt("batch:5:kill")).wait(kPatience));
  REQUIRE(resume(run.path("killed")).code == 0);
  CHECK((run.tensors("killed") == run.tensors("whole")));
  CHECK((run.tensors("plain") != run.tensors("whole")));
  // The codec that the client chooses itself on loopback, and checks of the server's gradients.
  const Arguments chosen = with(more, {"--set", "codec=auto", "--set", "privacy.detect=true",
                                       "--set", "privacy.detect_every=1"});
  CHECK(runClient("train", run.path("chosen"), chosen).code == 0);
  CHECK(summaryOf(run.path("chosen")).at("detection").at("checks") > 0);
}

TEST_CASE("a defence that cannot work is refused with what to change") {
  const Defended run;
  const auto refused = [&](const Arguments& more) {
    const Ended ended = runClient("train", run.path("refused"), more);
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(refused({"--set", "privacy.defence={kind: noise, deviation: 1}"}),
             Contains("bad-defence") && Contains("openssl rand -hex 32"));
  CHECK_THAT(refused({"--set", "privacy.defence={kind: noise}"}), Contains("deviation"));
  CHECK_THAT(refused({"--set", "privacy.defence={kind: nois}"}), Contains("noise"));
  CHECK_THAT(refused(with(run.with("{kind: distance_correlation, weight: 1}"),
                          {"--set", "precision.client=fp16"})),
             Contains("bad-defence") && Contains("scale_loss"));
  CHECK_THAT(refused(with(run.with("{kind: max_norm}"), {"--set", "train.micro_batches=32"})),
             Contains("bad-defence") && Contains("train.micro_batches"));
  CHECK_THAT(refused(run.with("[{kind: max_norm}, {kind: max_norm}]")), Contains("twice"));
  CHECK_THAT(refused(with(run.with("{kind: max_norm}"),
                          {"--set", "cohort={id: c, members: [a, b], member: a}"})),
             Contains("bad-defence") && Contains("cohort"));
}

}  // namespace
}  // namespace cleave::test
