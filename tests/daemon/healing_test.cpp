// If a connection breaks while client and server are running, the run continues, and its result is
// bit-identical.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// Options of a run that takes about a second.
const Arguments kShortRun = {"--set", "train.epochs=30", "--set", "eval.every=3"};

// Returns the final weights of a run whose connection is cut repeatedly.
std::string modelThrough(Relay& relay, const std::string& folder, const Arguments& more,
                         Relay::Way way, std::uint64_t everyBytes) {
  const Process client = startClient(
      "train", folder, with(with(kShortRun, more), {"--server", addressAt(relay.port())}));
  const RepeatedCuts cuts(relay, way, everyBytes);
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("reconnected to"));
  return readFile(folder + "/model.safetensors");
}

TEST_CASE("a run with repeatedly broken connections ends with the same weights") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  Relay relay("127.0.0.1", server.port());
  int number = 0;
  for (const std::string codec :
       {"none", "block:bits=8", "power:rank=2",
        "{activation/0: delta(block:bits=4), activation/1: delta(block:bits=4), "
        "gradient/0: ef(block:bits=4), gradient/1: ef(block:bits=4)}"}) {
    const Arguments more = {"--set", "codec=" + codec};
    const std::string name = std::to_string(++number);
    const std::string whole = folder.path("whole " + name);
    REQUIRE(runClient("train", whole, with(with(kShortRun, more), {"--server", server.address()}))
                .code == 0);
    const std::string expected = readFile(whole + "/model.safetensors");
    REQUIRE_FALSE(expected.empty());
    for (const std::uint64_t bytes : {9'001, 30'011}) {
      for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
        INFO(codec << ", " << bytes << (way == Relay::Way::up ? " up" : " down"));
        const std::string run = folder.path(name + " " + std::to_string(bytes) +
                                            (way == Relay::Way::up ? "up" : "down"));
        CHECK((modelThrough(relay, run, more, way, bytes) == expected));
        // The losses are the same in every step.
        const auto steps = readCsv(run + "/steps.csv");
        const auto undisturbed = readCsv(whole + "/steps.csv");
        REQUIRE(steps.size() == undisturbed.size());
        for (std::size_t row = 0; row < steps.size(); ++row) {
          CHECK(steps[row].at("loss") == undisturbed[row].at("loss"));
        }
      }
    }
  }
}

TEST_CASE("a link that goes silent does not end the run") {
  const TemporaryFolder folder;
  TestServer server(folder,
                    {"--set", "limits.ping_seconds=1", "--set", "limits.ping_timeout_seconds=1"});
  Relay relay("127.0.0.1", server.port());
  const Process client = startSlowClient(folder.path("client"), addressAt(relay.port()));
  waitForSteps(folder.path("client"));
  relay.stall(true);
  CHECK(server.process().waitForOutput("is kept for", kPatience));
  relay.stall(false);
  CHECK(client.waitForOutput("reconnected to", kPatience));
}

}  // namespace
}  // namespace cleave::test
