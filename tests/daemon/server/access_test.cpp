// A server with an access file. Clients over loopback without TLS have the identity "local".
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// A server with the given access file.
struct GuardedServer {
  explicit GuardedServer(const std::string& text) { write(text); }
  void write(const std::string& text) const { std::ofstream(file) << text; }
  Ended client(const std::string& name, const Arguments& more = {}) const {
    Arguments all = {"--server", server.address()};
    all.insert(all.end(), more.begin(), more.end());
    return runClient("train", folder.path(name), all);
  }
  void reload(const std::string& text) {
    write(text);
    server.process().signal(SIGHUP);
  }

  const TemporaryFolder folder;
  const std::string file = [this] {
    std::ofstream(folder.path("access.yaml")) << "{}\n";
    return folder.path("access.yaml");
  }();
  TestServer server{folder, {"--set", "access.file=" + file}};
};

TEST_CASE("the access file controls models, sessions, memory and runs, and SIGHUP reloads it") {
  GuardedServer guarded("");
  Ended ended = guarded.client("stranger");
  checkError(ended, kWrongUse,
             {"[unknown-identity]", "refuses: the identity local is not in the access file"});
  CHECK(guarded.server.process().waitForOutput("session 1 from 127.0.0.1:", kPatience));
  CHECK(guarded.server.process().waitForOutput("(unknown-identity)", kPatience));

  const auto reload = [&](const std::string& text, const std::string& said) {
    guarded.reload(text);
    REQUIRE(guarded.server.process().waitForOutput(said, kPatience));
  };
  reload("local: {models: [mobilenet_v2]}\n", "access.yaml: 1 entries");
  checkError(guarded.client("model"), kWrongUse,
             {"[model-not-allowed]", "does not allow the model", "to local"});
  reload("local: {memory_mib: 0}\nb: {}\n", "access.yaml: 2 entries");
  checkError(guarded.client("memory"), kWrongUse,
             {"[not-enough-memory]", "local has 0 MiB left of 0 MiB"});
  reload("local: {runs: [mine-*]}\nb: {}\nc: {}\n", "access.yaml: 3 entries");
  checkError(guarded.client("runs"), kWrongUse,
             {"[others-run]", "is not allowed for local", "matches mine-*"});
  reload("local: {sessions: 0}\nb: {}\nc: {}\nd: {}\n", "access.yaml: 4 entries");
  checkError(guarded.client("sessions"), kFailedRun,
             {"[too-many-sessions]", "local already has its maximum of 0 sessions"});
  reload("local: {sesions: 1}\n", "the access file is invalid");
  checkError(guarded.client("kept"), kFailedRun,
             {"[too-many-sessions]", "local already has its maximum of 0 sessions"});

  reload("local: {runs: [mine-*], sessions: 1, rate: 1Gbit/s}\nb: {}\nc: {}\nd: {}\ne: {}\n",
         "access.yaml: 5 entries");
  ended = guarded.client("allowed", {"--set", "run.name=mine"});
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(guarded.server.runFolders().size() == 1);
  guarded.server.stop();
}

TEST_CASE("an identity that is removed from the access file loses its open sessions") {
  GuardedServer guarded("local: {}\n");
  guarded.reload("local: {}\n");
  REQUIRE(guarded.server.process().waitForOutput("access.yaml: 1 entries", kPatience));
  const Process client = startSlowClient(guarded.folder.path("client"), guarded.server.address());
  waitForSteps(guarded.folder.path("client"));
  guarded.reload("local: {sesions: 1}\n");  // invalid, so the reload is rejected
  REQUIRE(guarded.server.process().waitForOutput("the access file is invalid", kPatience));
  CHECK_FALSE(client.wait(std::chrono::milliseconds(0)));
  guarded.reload("b: {}\nc: {}\n");
  checkError(finish(client), kWrongUse,
             {"[unknown-identity]", "the identity local is not in the access file"});
  guarded.server.stop();
}

TEST_CASE("a server with an invalid access file does not start") {
  const TemporaryFolder folder;
  std::ofstream(folder.path("access.yaml")) << "local:\n  sesions: 1\n";
  checkMistakes({serverProgram(), "serve", "--set", "listen.port=0", "--set",
                 "store=" + folder.path("store")},
                {{"mistyped key",
                  {"--set", "access.file=" + folder.path("access.yaml")},
                  kWrongUse,
                  {"[config-unknown-key]", "access.yaml:2: local.sesions is not a known key",
                   "did you mean"}},
                 {"no such file",
                  {"--set", "access.file=" + folder.path("none")},
                  kWrongUse,
                  {"cannot be read"}}});
}

}  // namespace
}  // namespace cleave::test
