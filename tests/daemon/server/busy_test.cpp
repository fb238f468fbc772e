// A server whose device or codecs are occupied by one client: the effect on other clients, and the
// limits that stop the busy client.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Options that make the run slow at the server only.
constexpr const char* kSlowCodec =
    "codec={activation/0: none, gradient/1: none, activation/1: \"zstd:level=19(none)\"}";

// Waits until the server's only run other than `others` has recorded a tensor. Returns the run's
// folder.
std::string waitForTensor(const TestServer& server, const std::vector<std::string>& others = {}) {
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kPatience) {
    for (const std::string& folder : server.runFolders()) {
      const std::string transfers = folder + "/transfers.csv";
      const bool isOther = std::find(others.begin(), others.end(), folder) != others.end();
      if (isOther || !std::filesystem::exists(transfers)) continue;
      const std::string text = readFile(transfers);
      if (std::count(text.begin(), text.end(), '\n') > 1) {
        return folder;
      }
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  FAIL("no tensor arrived");
  return "";
}

// A client whose actions at the server each take this long. Returns when the first action is
// running.
Process startLongActions(const TestServer& server, const std::string& folder,
                         std::chrono::milliseconds time) {
  const std::string each = std::to_string(time.count());
  return startClient("train", folder,
                     {"--set", "model={name: sleep, of: mlp, F2: " + each + ", B2: " + each + "}",
                      "--set", "train.micro_batches=1", "--set", "checkpoint.every_seconds=0",
                      "--server", server.address()});
}

TEST_CASE("runs whose model sleeps are refused unless the server allows them") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "models.allow=[mlp]"});
  const std::string model = "model={name: sleep, of: mlp, F1: 1, T3: 1, B1: 1, F2: 1, B2: 1}";
  checkError(
      runClient("train", folder.path("refused"), {"--server", server.address(), "--set", model}),
      kWrongUse, {"[model-not-allowed]", "refuses: ", "the model sleep", "models.allow"});
  CHECK(server.runFolders().empty());
  TestServer allows(folder, {}, "second");
  CHECK(runClient("train", folder.path("allowed"), {"--server", allows.address(), "--set", model})
            .code == 0);
  // A server that the client starts itself allows it.
  CHECK(runClient("train", folder.path("own"), {"--set", model}).code == 0);
}

TEST_CASE("an action that takes longer than allowed ends its session") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.action_seconds=0.5"});
  const Process client = startLongActions(server, folder.path("client"), milliseconds(600));
  checkError(finish(client), kFailedRun,
             {"[action-too-long]", "BodyForward", "limits.action_seconds", "use a smaller batch"});
  CHECK(server.process().waitForOutput("BodyForward", kPatience));
}

TEST_CASE("a tensor whose encoding takes longer than allowed ends its session") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.codec_seconds=0.01"});
  checkError(runClient("train", folder.path("client"),
                       {"--server", server.address(), "--set", "model.width=4096", "--set",
                        "train.batch=64", "--set", "train.micro_batches=1", "--set", kSlowCodec}),
             kFailedRun, {"[codec-too-long]", "limits.codec_seconds", "use a faster codec"});
}

TEST_CASE("a new client is admitted while a long action runs, and trains between such actions") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process busy = startLongActions(server, folder.path("busy"), seconds(8));
  waitForTensor(server);
  const auto start = steady_clock::now();
  const Process newcomer =
      startClient("train", folder.path("newcomer"), {"--server", server.address()});
  REQUIRE(newcomer.waitForOutput("connected to", kPatience));
  // The action still occupies the device; it takes eight seconds.
  CHECK(steady_clock::now() - start < seconds(7));
  CHECK(readCsv(folder.path("busy") + "/steps.csv").size() <= 1);
  CHECK(finish(newcomer).code == 0);
  // The busy client is still in its first step: the newcomer has had an equal share of the device.
  CHECK(steady_clock::now() - start < seconds(16));
}

TEST_CASE("SIGTERM stops a server within 10 s even if an action takes a minute") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process ordinary =
      startSlowClient(folder.path("ordinary"), server.address(), kNoCheckpoints);
  waitForSteps(folder.path("ordinary"));
  const std::string ordinaryRun = server.runFolders().at(0);
  const Process busy = startLongActions(server, folder.path("busy"), seconds(60));
  const std::string busyRun = waitForTensor(server, {ordinaryRun});
  server.process().signal(SIGTERM);
  const auto start = steady_clock::now();
  CHECK(finish(server.process()).code == 0);
  CHECK(steady_clock::now() - start < seconds(10));
  checkError(finish(busy), kFailedRun,
             {"[shutting-down]", "the server is shutting down", "restart the server"});
  checkError(finish(ordinary), kFailedRun,
             {"[shutting-down]", "the server is shutting down", "restart the server"});
  checkFilesComplete(ordinaryRun);
  const auto steps = readCsv(busyRun + "/steps.csv");
  CHECK(steps.back().at("phase") == "bye");
  CHECK_FALSE(readCsv(busyRun + "/transfers.csv").empty());
  CHECK_THAT(readFile(busyRun + "/log.txt"), Contains("the server is shutting down"));
}

TEST_CASE("SIGTERM stops a server within 10 s even if a codec takes longer") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process client = startClient(
      "train", folder.path("client"),
      {"--server", server.address(), "--set", "model.width=4096", "--set", "data.train.size=4096",
       "--set", "train.batch=4096", "--set", "train.micro_batches=1", "--set",
       "checkpoint.every_seconds=0", "--set", kSlowCodec});
  waitForTensor(server);
  server.process().signal(SIGTERM);
  const auto start = steady_clock::now();
  CHECK(finish(server.process()).code == 0);
  CHECK(steady_clock::now() - start < seconds(10));
  finish(client);
}

TEST_CASE("a server that does not answer a Hello in time is tried again") {
  const TemporaryFolder folder;
  boost::asio::io_context context;
  boost::asio::ip::tcp::acceptor silent(context, {boost::asio::ip::address_v4::loopback(), 0});
  Process client =
      startClient("train", folder.path("client"),
                  {"--server", "127.0.0.1:" + std::to_string(silent.local_endpoint().port())});
  REQUIRE(client.waitForOutput("retrying", kPatience));
  CHECK_THAT(client.errors(), Contains("within 5 s"));
  client.signal(SIGINT);
  checkError(finish(client), kFailedRun, {"[interrupted]", "interrupted"});
}

}  // namespace
}  // namespace cleave::test
