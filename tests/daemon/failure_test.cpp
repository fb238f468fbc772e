// What goes wrong says so, ends in time, and leaves complete files: each fault is provoked with
// real daemons.
#include <csignal>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST_CASE("a server that is killed in mid-run ends the client in 5 s, with its files complete") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process client = startSlowClient(folder.path("client"), server.address());
  waitForSteps(folder.path("client"));
  server.process().signal(SIGKILL);
  const auto start = steady_clock::now();
  const Ended ended = finish(client);
  CHECK(steady_clock::now() - start < seconds(5));
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("127.0.0.1"));
  checkFilesComplete(folder.path("client"));
}

TEST_CASE("a client that is killed ends its session, and the server takes the next") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Process client = startSlowClient(folder.path("client"), server.address());
  waitForSteps(folder.path("client"));
  client.signal(SIGKILL);
  finish(client);
  CHECK(server.process().waitForOutput("ended: ", kPatience));
  CHECK(runClient("train", folder.path("next"), {"--server", server.address()}).code == 0);
}

TEST_CASE("a connection that breaks ends the run on both sides") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Relay relay("127.0.0.1", server.port());
  const Process client =
      startSlowClient(folder.path("client"), "127.0.0.1:" + std::to_string(relay.port()));
  waitForSteps(folder.path("client"));
  relay.cut();
  CHECK(finish(client).code == 1);
  checkFilesComplete(folder.path("client"));
  CHECK(server.process().waitForOutput("ended: ", kPatience));
}

TEST_CASE("Ctrl-C at the client ends both sides cleanly") {
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    TestServer server(folder);
    Process client = startSlowClient(folder.path("client"), server.address());
    waitForSteps(folder.path("client"));
    client.signal(number);
    const Ended ended = finish(client);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.errors, Contains("interrupted"));
    checkFilesComplete(folder.path("client"));
    CHECK(server.process().waitForOutput("the client said goodbye (interrupted)", kPatience));
    server.process().signal(number);
    CHECK(finish(server.process()).code == 0);
    checkFilesComplete(server.runFolders().at(0));
  }
}

TEST_CASE("Ctrl-C at the server tells its clients, and ends with 0") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process client = startSlowClient(folder.path("client"), server.address());
  waitForSteps(folder.path("client"));
  server.process().signal(SIGINT);
  CHECK(finish(server.process()).code == 0);
  const Ended ended = finish(client);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("the server is shutting down"));
  checkFilesComplete(folder.path("client"));
  checkFilesComplete(server.runFolders().at(0));
}

TEST_CASE("a server that comes late is found") {
  const TemporaryFolder folder;
  std::uint16_t port = 0;
  {
    const TestServer server(folder);
    port = server.port();
  }
  const Process client = startClient("train", folder.path("client"),
                                     {"--server", "127.0.0.1:" + std::to_string(port)});
  REQUIRE(client.waitForOutput("trying again", kPatience));
  const TestServer server(folder, {"--set", "listen.port=" + std::to_string(port)}, "second");
  CHECK(finish(client).code == 0);
}

TEST_CASE("--insecure-bind listens beyond loopback, and warns") {
  Process allowed = Process::start({serverProgram(), "serve", "--insecure-bind", "--set",
                                    "listen.address=0.0.0.0", "--set", "listen.port=0"});
  REQUIRE(allowed.waitForOutput(" listens on ", kPatience));
  allowed.signal(SIGTERM);
  const Ended ended = finish(allowed);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("without encryption or authentication"));
}

TEST_CASE("a server that keeps its weights still trains") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "weights.fetch=false"});
  const Ended ended = runClient("train", folder.path("client"), {"--server", server.address()});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("does not hand out the body"));
  CHECK_FALSE(std::filesystem::exists(folder.path("client") + "/model.safetensors"));
}

TEST_CASE("help and version") {
  for (const std::string& program : {serverProgram(), clientProgram()}) {
    const Ended help = finish(Process::start({program, "--help"}));
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains("Usage"));
    const Ended version = finish(Process::start({program, "--version"}));
    CHECK(version.code == 0);
    CHECK_THAT(version.output, Contains("cleave "));
  }
  for (const std::string command : {"train", "verify"}) {
    CHECK_THAT(finish(Process::start({clientProgram(), command, "--help"})).output,
               Contains("Example"));
  }
  CHECK_THAT(finish(Process::start({serverProgram(), "serve", "--help"})).output,
             Contains("Example"));
}

}  // namespace
}  // namespace cleave::test
