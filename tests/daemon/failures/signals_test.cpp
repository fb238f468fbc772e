// SIGINT and SIGTERM at the client and the server: the first signal ends the program cleanly, the
// second exits immediately.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/daemon/mistakes.h"
#include "tests/daemon/pty.h"
#include "tests/support/network/certificates.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST_CASE("Ctrl-C at the client ends both sides cleanly") {
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    TestServer server(folder);
    Process client = startSlowClient(folder.path("client"), server.address(), kNoCheckpoints);
    waitForSteps(folder.path("client"));
    client.signal(number);
    const Ended ended = finish(client);
    checkError(ended, kFailedRun, {"cleave-client: error [interrupted]: ", "rerun the command"});
    checkFilesComplete(folder.path("client"));
    CHECK(server.process().waitForOutput("the client ended it (interrupted)", kPatience));
    server.process().signal(number);
    CHECK(finish(server.process()).code == 0);
    checkFilesComplete(server.runFolders().at(0));
  }
}

TEST_CASE("Ctrl-C at the server notifies its clients and exits with 0") {
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    TestServer server(folder);
    const Process client = startSlowClient(folder.path("client"), server.address(), kNoCheckpoints);
    waitForSteps(folder.path("client"));
    server.process().signal(number);
    CHECK(finish(server.process()).code == 0);
    checkError(finish(client), kFailedRun,
               {"[shutting-down]", "the server is shutting down", "restart the server"});
    checkFilesComplete(folder.path("client"));
    checkFilesComplete(server.runFolders().at(0));
  }
}

// The number of steps in a run's steps.csv.
std::size_t stepsIn(const std::string& runFolder) {
  std::size_t steps = 0;
  for (const CsvRow& row : readCsv(runFolder + "/steps.csv")) steps += row.at("phase") == "train";
  return steps;
}

// Waits until the server's only run has recorded a tensor of this flow. Records are written within
// a second.
void waitForTensor(const TestServer& server, const std::string& flow) {
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kPatience) {
    for (const std::string& folder : server.runFolders()) {
      std::ifstream file(folder + "/transfers.csv");
      const std::string rows{std::istreambuf_iterator<char>(file), {}};
      if (rows.find("," + flow + ",") != std::string::npos) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("no tensor of the flow " << flow << " was recorded");
}

// Starts a client whose model takes these times. Returns when its first gradient has arrived at the
// server.
Process startInStep(const TestServer& server, const std::string& folder, const std::string& times,
                    const Arguments& more = {}) {
  Arguments all = {"--set",    "model={name: sleep, of: mlp, " + times + "}",
                   "--set",    "train.micro_batches=2",
                   "--set",    "eval.every=0",
                   "--server", server.address()};
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), kNoCheckpoints.begin(), kNoCheckpoints.end());
  Process client = startClient("train", folder, all);
  waitForTensor(server, "gradient/1");
  return client;
}

TEST_CASE("SIGTERM during a step ends the run on both sides, then the server") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  Arguments serverOptions, clientOptions;
  SECTION("plain") {}
  SECTION("within TLS") {
    const TestAuthority authority;
    const std::string own = certificates.path("server"), alice = certificates.path("alice");
    authority.writeServer(own);
    authority.write(alice, "client", clientRequest());
    for (const auto& setting : {std::string("tls.enabled=true"), "tls.folder=" + own}) {
      serverOptions.insert(serverOptions.end(), {"--set", setting});
    }
    clientOptions = {"--tls", alice};
  }
  TestServer server(folder, serverOptions);
  // The first of two backwards has begun, so the step takes several more seconds.
  const Process client =
      startInStep(server, folder.path("client"), "F2: 1, B2: 1500", clientOptions);
  server.process().signal(SIGTERM);
  const auto start = steady_clock::now();
  CHECK(finish(server.process()).code == 0);
  CHECK(steady_clock::now() - start < seconds(10));
  checkError(finish(client), kFailedRun,
             {"[shutting-down]", "the server is shutting down, after finishing the current step",
              "restart the server"});
  const std::size_t steps = stepsIn(server.runFolders().at(0));
  INFO(server.process().errors());
  CHECK(steps >= 1);
  CHECK(stepsIn(folder.path("client")) == steps);
  CHECK_THAT(server.process().errors(), Contains(std::to_string(steps) + " steps applied"));
}

TEST_CASE("SIGTERM during a step that takes too long ends the server without the step") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.drain_seconds=0.5"});
  const Process client =
      startInStep(server, folder.path("client"), "F1: 1, B1: 4000, F2: 1, B2: 1");
  server.process().signal(SIGTERM);
  const auto start = steady_clock::now();
  CHECK(finish(server.process()).code == 0);
  CHECK(steady_clock::now() - start < seconds(3));
  checkError(finish(client), kFailedRun,
             {"[shutting-down]", "the server is shutting down", "restart the server"});
}

TEST_CASE("SIGTERM does not wait for connections without a Hello") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.hello_seconds=60"});
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket silent(context);
  silent.connect({boost::asio::ip::address_v4::loopback(), server.port()});
  // The server accepts connections in order: when it has answered the probe, it has accepted the
  // silent connection.
  CHECK(ask({"probe", "--server", server.address(), "--max-size", "1kB", "--repeat", "1"}).code ==
        0);
  const auto start = steady_clock::now();
  server.stop();
  CHECK(steady_clock::now() - start < seconds(5));
}

TEST_CASE("Ctrl-C ends the client within a limited time while the server is stopped") {
  for (const bool twice : {false, true}) {
    const TemporaryFolder folder;
    TestServer server(folder);
    Process client = startSlowClient(folder.path("client"), server.address(), kNoCheckpoints);
    waitForSteps(folder.path("client"));
    server.process().signal(SIGSTOP);
    client.signal(SIGINT);
    REQUIRE(client.waitForOutput("stopping; interrupt again to exit immediately", kPatience));
    if (twice) client.signal(SIGINT);
    const Ended ended = finish(client);
    CHECK(ended.code == 1);
    // After one signal, the client waits a limited time for the server's Bye, then prints its last
    // sentence.
    CHECK((ended.errors.find("cleave-client: error [interrupted]: ") != std::string::npos) ==
          !twice);
  }
}

TEST_CASE("Ctrl-C ends the server within a limited time while the client is stopped") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Process client = startSlowClient(folder.path("client"), server.address(), kNoCheckpoints);
  waitForSteps(folder.path("client"));
  client.signal(SIGSTOP);
  server.process().signal(SIGTERM);
  CHECK(finish(server.process()).code == 0);
  checkFilesComplete(server.runFolders().at(0));
}

TEST_CASE("a second Ctrl-C at a computing server exits immediately") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process client =
      startClient("train", folder.path("client"),
                  {"--set", "model={name: sleep, of: mlp, F2: 50000, B2: 50000}", "--set",
                   "connect.reconnect_seconds=0", "--server", server.address()});
  waitForTensor(server, "activation/0");  // the server's device thread is now busy with this tensor
  const auto start = steady_clock::now();
  server.process().signal(SIGINT);
  REQUIRE(server.process().waitForOutput("a second signal exits immediately", kPatience));
  server.process().signal(SIGINT);
  CHECK(finish(server.process()).code == 1);
  CHECK(steady_clock::now() - start < seconds(20));
  checkError(finish(client), kFailedRun, {});
}

// Sends Ctrl-C when the text `when` has been printed, and checks that the client exits quickly.
void checkEndsAtOnce(Process client, const std::string& when) {
  REQUIRE(client.waitForOutput(when, kPatience));
  client.signal(SIGINT);
  const auto start = steady_clock::now();
  const Ended ended = finish(client);
  CHECK(steady_clock::now() - start <
        seconds(3));  // without Ctrl-C, it would wait for at least 4 s
  checkError(ended, kFailedRun, {"cleave-client: error [interrupted]: ", "rerun the command"});
}

TEST_CASE("Ctrl-C works while the client tries to connect") {
  const TemporaryFolder folder;
  std::string address;
  {
    const TestServer server(folder);
    address = server.address();
  }
  checkEndsAtOnce(startClient("train", folder.path("refused"), {"--server", address}),
                  "retrying in 4.");
}

TEST_CASE("Ctrl-C works while the client waits for an answer") {
  const TemporaryFolder folder;
  boost::asio::io_context context;
  boost::asio::ip::tcp::acceptor silent(context, {boost::asio::ip::address_v4::loopback(), 0});
  Process client =
      startClient("train", folder.path("silent"),
                  {"--server", "127.0.0.1:" + std::to_string(silent.local_endpoint().port())});
  const auto socket = silent.accept();
  const auto start = steady_clock::now();
  client.signal(SIGINT);
  checkError(finish(client), kFailedRun,
             {"cleave-client: error [interrupted]: ", "rerun the command"});
  CHECK(steady_clock::now() - start <
        seconds(3));  // without Ctrl-C, it would wait 5 s for the server
}

// A server on a terminal of its own. `within`: a command prefix that runs the server.
struct TerminalServer {
  explicit TerminalServer(const TemporaryFolder& folder, Arguments within = {})
      : access(folder.path("access.yaml")), server(command(folder, std::move(within)), 1000, {}) {
    const std::string says = " listens on 127.0.0.1:";
    REQUIRE(server.waitForOutput(says, kPatience));
    const std::string output = server.output();
    port = std::to_string(std::stoi(output.substr(output.find(says) + says.size())));
  }

  Arguments command(const TemporaryFolder& folder, Arguments all) const {
    write("local: {}\n");
    const Arguments own = {serverProgram(), "serve",
                           "--config",      configFile("server.yaml"),
                           "--set",         "listen.port=0",
                           "--set",         "models.allow=[sleep]",
                           "--set",         "store=" + folder.path("store"),
                           "--set",         "access.file=" + access};
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  void write(const std::string& text) const { std::ofstream(access) << text; }
  std::string address() const { return "127.0.0.1:" + port; }

  std::string access;
  TerminalProcess server;
  std::string port;
};

TEST_CASE("when its terminal closes, a server ends its clients and stops; SIGHUP alone reloads") {
  const TemporaryFolder folder;
  TerminalServer terminal(folder);
  const Process client = startSlowClient(folder.path("client"), terminal.address(), kNoCheckpoints);
  waitForSteps(folder.path("client"));
  terminal.write("local: {}\nother: {}\n");
  terminal.server.signal(SIGHUP);
  REQUIRE(terminal.server.waitForOutput("2 entries", kPatience));
  terminal.server.hangUp();
  CHECK(terminal.server.wait(kPatience) == 0);
  checkError(finish(client), kFailedRun, {"[shutting-down]", "the server is shutting down"});
  checkFilesComplete(folder.path("client"));
}

TEST_CASE("a server that ignores SIGHUP outlives its terminal") {
  const TemporaryFolder folder;
  TerminalServer terminal(folder, {"/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh"});
  terminal.server.hangUp();
  const auto probe = [&] {
    return ask({"probe", "--server", terminal.address(), "--max-size", "1kB", "--repeat", "1"})
        .code;
  };
  CHECK(probe() == 0);
  terminal.server.signal(SIGHUP);  // sent by the test, because the terminal was closed long ago
  CHECK(probe() == 0);
  terminal.server.signal(SIGTERM);
  CHECK(terminal.server.wait(kPatience) == 0);
}

}  // namespace
}  // namespace cleave::test
