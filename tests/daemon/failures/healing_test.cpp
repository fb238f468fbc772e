// If a connection breaks while client and server are running, the run continues, and its result is
// bit-identical.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// Options of a run that takes about a second.
const Arguments kShortRun = {"--set", "train.epochs=30", "--set", "eval.every=3"};

// Fails the test unless both runs have the same losses in every step.
void checkSameLosses(const std::string& run, const std::string& whole) {
  const auto steps = readCsv(run + "/steps.csv");
  const auto undisturbed = readCsv(whole + "/steps.csv");
  REQUIRE(steps.size() == undisturbed.size());
  for (std::size_t row = 0; row < steps.size(); ++row) {
    CHECK(steps[row].at("loss") == undisturbed[row].at("loss"));
  }
}

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
        "gradient/0: power:rank=2, gradient/1: power:rank=2}"}) {
    const Arguments more = {"--set", "codec=" + codec};
    const std::string name = std::to_string(++number);
    const std::string whole = folder.path("whole " + name);
    REQUIRE(runClient("train", whole, with(with(kShortRun, more), {"--server", server.address()}))
                .code == 0);
    const std::string expected = readFile(whole + "/model.safetensors");
    REQUIRE_FALSE(expected.empty());
    for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
      const std::uint64_t bytes = (number % 2 == 0) == (way == Relay::Way::up) ? 9'001 : 30'011;
      INFO(codec << ", " << bytes << (way == Relay::Way::up ? " up" : " down"));
      const std::string run = folder.path(name + (way == Relay::Way::up ? " up" : " down"));
      CHECK((modelThrough(relay, run, more, way, bytes) == expected));
      checkSameLosses(run, whole);
    }
  }
}

TEST_CASE("after silence and with a half-open connection, a run ends with the same weights") {
  const TemporaryFolder folder;
  TestServer server(folder,
                    {"--set", "limits.ping_seconds=1", "--set", "limits.ping_timeout_seconds=1"});
  const std::string whole = folder.path("whole"), run = folder.path("run");
  REQUIRE(runClient("train", whole, with(kShortRun, {"--server", server.address()})).code == 0);
  Relay relay("127.0.0.1", server.port());
  relay.delay(std::chrono::milliseconds(1));  // otherwise the run ends too early
  const Process client =
      startClient("train", run, with(kShortRun, {"--server", addressAt(relay.port())}));
  waitForSteps(run);
  relay.stall(true);
  CHECK(server.process().waitForOutput("is kept for", kPatience));
  relay.stall(false);
  REQUIRE(client.waitForOutput("reconnected to", kPatience));
  relay.abandon(Relay::End::client);  // the server does not notice it
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK((readFile(run + "/model.safetensors") == readFile(whole + "/model.safetensors")));
  checkSameLosses(run, whole);
  CHECK(std::stoi(readCsv(run + "/steps.csv").back().at("generation")) >= 3);
}

}  // namespace
}  // namespace cleave::test
