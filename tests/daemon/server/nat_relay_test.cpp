// A server that dials out to cleave-relay, and clients that reach it there.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"

namespace cleave::test {
namespace {

using boost::asio::ip::tcp;
using Catch::Matchers::Contains;

const std::string kAnyPort = "127.0.0.1:0";

std::string relayProgram() { return std::string(CLEAVE_PROGRAMS) + "/cleave-relay"; }

std::string writeSecret(const std::string& path,
                        const std::string& secret = "0123456789abcdef0123456789abcdef") {
  std::ofstream(path) << secret << "\n";
  std::filesystem::permissions(
      path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return path;
}

// A cleave-relay, which start() starts again on the same ports.
class TestRelay {
 public:
  explicit TestRelay(const std::string& secret, Arguments more = {})
      : secret_(secret), more_(std::move(more)) {
    start();
  }
  void start() {
    process_ = std::make_unique<Process>(Process::start(
        with({relayProgram(), "--listen", clients_, "--register", server_, "--secret", secret_},
             more_)));
    REQUIRE(process_->waitForOutput("for the server\n", kPatience));
    const std::string output = process_->output();
    const auto addressAfter = [&](const std::string& before) {
      const std::size_t begin = output.find(before) + before.size();
      return output.substr(begin, output.find(' ', begin) - begin);
    };
    clients_ = addressAfter("listening on ");
    server_ = addressAfter("clients, on ");
  }
  void kill() {
    process_->signal(SIGKILL);
    REQUIRE(process_->wait(kPatience));
  }
  Ended stop() {
    process_->signal(SIGTERM);
    return finish(*process_);
  }
  Process& process() { return *process_; }
  const std::string& address() const { return clients_; }
  const std::string& serverAddress() const { return server_; }

 private:
  const std::string secret_;
  const Arguments more_;
  std::string clients_ = kAnyPort;
  std::string server_ = kAnyPort;
  std::unique_ptr<Process> process_;
};

Arguments dialling(const TestRelay& relay, const std::string& secret) {
  return {"--dial", relay.serverAddress(), "--set", "dial.secret=" + secret};
}

TEST_CASE("training through a relay over TLS is bit-identical to training without it") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server"), alice = certificates.path("alice");
  authority.writeServer(own);
  authority.write(alice, "client", clientRequest());
  const std::string secret = writeSecret(folder.path("secret"));
  TestRelay relay(secret);
  TestServer server(folder, with(dialling(relay, secret),
                                 {"--set", "tls.enabled=true", "--set", "tls.folder=" + own}));
  const auto train = [&](const std::string& name, const std::string& address) {
    const Ended ended =
        runClient("train", folder.path(name), {"--server", address, "--tls", alice});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return readFile(folder.path(name) + "/model.safetensors");
  };
  CHECK(train("through", relay.address()) == train("direct", server.address()));
  CHECK_THAT(server.process().errors(), Contains("registered with the relay"));
  server.stop();
  const Ended ended = relay.stop();
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors,
             Contains("cleave-relay: 1 client; ") && Contains(" 0 connections refused"));
}

TEST_CASE("a run continues when the relay is killed and started again") {
  const TemporaryFolder folder;
  const std::string secret = writeSecret(folder.path("secret"));
  TestRelay relay(secret);
  TestServer server(folder, dialling(relay, secret));
  const Arguments run = {"--set", "train.epochs=40", "--set",
                         "model={name: sleep, of: mlp, F1: 2, B1: 2}"};
  REQUIRE(
      runClient("train", folder.path("whole"), with(run, {"--server", server.address()})).code ==
      0);
  const Process client =
      startClient("train", folder.path("client"), with(run, {"--server", relay.address()}));
  waitForSteps(folder.path("client"));
  for (int i = 0; i < 2; ++i) {
    relay.kill();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the client finds no relay
    relay.start();
    REQUIRE(relay.process().waitForOutput("has registered", kPatience));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // and trains for a while
  }
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("reconnected to"));
  CHECK(readFile(folder.path("client") + "/model.safetensors") ==
        readFile(folder.path("whole") + "/model.safetensors"));
}

TEST_CASE("a client that arrives before the server waits at the relay") {
  const TemporaryFolder folder;
  const std::string secret = writeSecret(folder.path("secret"));
  TestRelay relay(secret);
  const Process client =
      startClient("train", folder.path("client"),
                  {"--server", relay.address(), "--set", "connect.retry_seconds=60"});
  TestServer server(folder, dialling(relay, secret));
  const Ended ended = finish(client);
  INFO(ended.errors);
  CHECK(ended.code == 0);
}

TEST_CASE("without a server, the relay disconnects clients after a while") {
  const TemporaryFolder folder;
  TestRelay relay(writeSecret(folder.path("secret")), {"--pending-time", "300ms"});
  const Ended ended = runClient("train", folder.path("client"),
                                {"--server", relay.address(), "--set", "connect.retry_seconds=1"});
  CHECK(ended.code == kFailedRun);
  CHECK_THAT(relay.stop().errors, Contains("no server has registered"));
}

TEST_CASE("a server with another secret does not register, and both sides say so") {
  const TemporaryFolder folder;
  TestRelay relay(writeSecret(folder.path("secret")));
  TestServer server(folder, dialling(relay, writeSecret(folder.path("other"),
                                                        "another secret of "
                                                        "the server")));
  CHECK(server.process().waitForOutput("the relay and this server have different secrets",
                                       kPatience));
  CHECK(relay.process().waitForOutput("it does not have the secret", kPatience));
  server.stop();
  CHECK(relay.stop().code == 0);
}

TEST_CASE("many silent connections at the relay do not keep a client from training") {
  const TemporaryFolder folder;
  const std::string secret = writeSecret(folder.path("secret"));
  // The relay itself refuses none of them, however slowly the server takes them.
  TestRelay relay(secret, {"--pending", "512"});
  TestServer server(folder, with(dialling(relay, secret), {"--set", "limits.hello_seconds=30"}));
  REQUIRE(relay.process().waitForOutput("has registered", kPatience));
  boost::asio::io_context context;
  const auto colon = relay.address().rfind(':');
  const tcp::endpoint endpoint(
      boost::asio::ip::address_v4::loopback(),
      static_cast<std::uint16_t>(std::stoi(relay.address().substr(colon + 1))));
  std::vector<tcp::socket> silent;
  const auto connectSilently = [&](int count) {
    for (int i = 0; i < count; ++i) silent.emplace_back(context).connect(endpoint);
  };
  connectSilently(100);
  const Ended ended = runClient("train", folder.path("client"),
                                {"--server", relay.address(), "--set", "connect.retry_seconds=60"});
  INFO(ended.errors);
  CHECK(ended.code == 0);
  // More than the server's limit per address, which counts the clients' addresses.
  connectSilently(300);
  CHECK(server.process().waitForOutput("too-many-", kPatience));
}

TEST_CASE("a server behind a relay shuts down in time") {
  const TemporaryFolder folder;
  const std::string secret = writeSecret(folder.path("secret"));
  TestRelay relay(secret);
  TestServer server(folder, dialling(relay, secret));
  const Process client = startSlowClient(folder.path("client"), relay.address(), kNoCheckpoints);
  waitForSteps(folder.path("client"));
  server.stop();
  CHECK(relay.process().waitForOutput("has left", kPatience));
}

TEST_CASE("mistakes with a relay are reported with a hint") {
  const TemporaryFolder folder;
  const std::string secret = writeSecret(folder.path("secret"));
  const std::string brief = writeSecret(folder.path("brief"), "short");
  const std::string open = writeSecret(folder.path("open"));
  std::filesystem::permissions(open, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  checkMistakes(
      {relayProgram()},
      {
          {"nothing", {}, kWrongUse, {"--secret is required"}},
          {"unknown flag",
           {"--secret", secret, "--lisen", kAnyPort},
           kWrongUse,
           {"cleave-relay has no option '--lisen'; did you mean --listen?"}},
          {"no such secret", {"--secret", folder.path("none")}, kWrongUse, {"cannot be read"}},
          {"short secret",
           {"--secret", brief},
           kWrongUse,
           {"[bad-secret]", "has fewer than 16 bytes", "openssl rand -hex 32"}},
          {"readable secret",
           {"--secret", open},
           kWrongUse,
           {"[key-readable]", "users other than its owner"}},
          {"a name to listen on",
           {"--secret", secret, "--listen", "relay:1"},
           kWrongUse,
           {"[bad-address]", "--listen", "is not an IP address with a port"}},
          {"no time",
           {"--secret", secret, "--idle-time", "soon"},
           kWrongUse,
           {"[bad-value]", "--idle-time"}},
          {"no clients", {"--secret", secret, "--connections", "0"}, kWrongUse, {"--connections"}},
      });
  checkMistakes({serverProgram(), "serve"},
                {
                    {"no secret",
                     {"--dial", "127.0.0.1:1"},
                     kWrongUse,
                     {"[no-secret]", "dial.secret is missing"}},
                    {"no port",
                     {"--dial", "relay"},
                     kWrongUse,
                     {"[bad-address]", "dial.relay: 'relay' has no port"}},
                    {"short secret",
                     {"--dial", "127.0.0.1:1", "--set", "dial.secret=" + brief, "--set",
                      "listen.port=0", "--set", "store=" + folder.path("store")},
                     kWrongUse,
                     {"[bad-secret]", "has fewer than 16 bytes"}},
                    {"without TLS",
                     {"--dial", "relay.example.org:4801", "--set", "dial.secret=" + secret},
                     kWrongUse,
                     {"[unsafe-dial]", "would let anyone who can reach it train here", "certs init",
                      "--name relay.example.org"}},
                });
}

TEST_CASE("the help of cleave-relay shows an example and exit codes") {
  const Ended ended = finish(Process::start({relayProgram(), "--help"}));
  CHECK(ended.code == 0);
  CHECK_THAT(ended.output, Contains("--register 0.0.0.0:4801") && Contains("Exit codes: 0"));
}

}  // namespace
}  // namespace cleave::test
