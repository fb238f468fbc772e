// Faults at the other end of the connection: no server, another service, a server that refuses,
// bytes damaged in transit. The tests provoke each fault, and check that the error states what is
// wrong, where, and how to fix it.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "common/net/frames/frame.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using namespace std::string_literals;
using boost::asio::ip::tcp;

enum class Reaction { waits, ends, resets };

// A service on a free loopback port that answers its first connection with `greeting`. Depending on
// `then`, it next waits until its peer has closed, or closes its own direction first, or resets the
// connection when a byte has arrived.
class FakeService {
 public:
  FakeService(std::string greeting, Reaction then)
      : thread_([this, greeting = std::move(greeting), then] {
          auto socket = acceptor_.accept();
          boost::system::error_code ignored;
          boost::asio::write(socket, boost::asio::buffer(greeting), ignored);
          if (then == Reaction::ends) socket.shutdown(tcp::socket::shutdown_send, ignored);
          char byte = 0;
          while (socket.read_some(boost::asio::buffer(&byte, 1), ignored) > 0) {
            if (then != Reaction::resets) continue;
            socket.set_option(boost::asio::socket_base::linger(true, 0), ignored);
            return;
          }
        }) {}
  ~FakeService() { thread_.join(); }  // requires that its client has connected
  FakeService(const FakeService&) = delete;
  FakeService& operator=(const FakeService&) = delete;

  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, {boost::asio::ip::address_v4::loopback(), 0}};
  std::thread thread_;
};

// A control frame without a checksum, with this wire version and kind.
std::string frame(char version, char kind, const std::string& metadata) {
  return "CLVE"s + version + kind + "\0\0"s + static_cast<char>(metadata.size()) +
         std::string(23, '\0') + metadata;
}

// A protobuf field of type string.
std::string field(char number, const std::string& text) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(text.size()) + text;
}

TEST_CASE("a service that is not a Cleave server is reported, and named if it is known") {
  struct Row {
    std::string name;
    std::string greeting;
    Reaction then;
    std::vector<std::string> says;
  };
  const std::string checkHost = "check that host and port are those of a Cleave program";
  const std::string sameRelease = "the same version of Cleave on both";
  const std::string refused = field(1, "any-code") + field(2, "not today") + field(3, "try later");
  const std::vector<Row> rows = {
      {"HTTP",
       "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
       Reaction::ends,
       {"it is an HTTP server", checkHost}},
      {"SSH", "SSH-2.0-OpenSSH_9.2p1\r\n", Reaction::waits, {"it is an SSH server", checkHost}},
      {"SMTP",
       "220 mail.example.org ESMTP\r\n",
       Reaction::waits,
       {"it sent \"220 mail", checkHost}},
      {"silent",
       "",
       Reaction::waits,
       {"did not complete its part of the handshake within 5 s", checkHost}},
      {"closes immediately",
       "",
       Reaction::ends,
       {"closed the connection before the handshake", "that it is a Cleave program"}},
      {"resets",
       "",
       Reaction::resets,
       {"was lost: Connection reset", "that it is a Cleave program"}},
      {"another wire version", frame(7, 2, ""), Reaction::waits, {"wire version 7", sameRelease}},
      {"refuses",
       frame(kWireVersion, 3, refused),
       Reaction::ends,
       {"[any-code]", "refuses: not today", "try later"}},
      {"an invalid reply",
       frame(kWireVersion, 2, "\xff\xff\xff"),
       Reaction::waits,
       {"HelloOk", "try again"}},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.name);
    const FakeService service(row.greeting, row.then);
    std::vector<std::string> says = row.says;
    says.push_back(service.address());  // the location
    checkError(runClient("train", folder.path(row.name),
                         {"--server", service.address(), "--set", "connect.retry_seconds=0"}),
               kFailedRun, says);
  }
}

TEST_CASE("an HTTP server that waits for a complete request is recognised") {
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  // Does not answer a Hello, but answers an HTTP request.
  std::thread service([&] {
    const tcp::socket silent = acceptor.accept();
    tcp::socket asked = acceptor.accept();
    boost::system::error_code ignored;
    std::string request;
    boost::asio::read_until(asked, boost::asio::dynamic_buffer(request), "\r\n\r\n", ignored);
    boost::asio::write(asked, boost::asio::buffer("HTTP/1.0 200 OK\r\n\r\n"s), ignored);
  });
  const TemporaryFolder folder;
  const std::string address = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  checkError(runClient("train", folder.path("run"), {"--server", address}), kFailedRun,
             {"[not-cleave]", address, "HTTP server", "cleave-server"});
  // If the client has not sent an HTTP request, these connections end both calls of accept().
  for (int i = 0; i < 2; ++i) {
    tcp::socket last(context);
    boost::system::error_code ignored;
    last.connect(acceptor.local_endpoint(), ignored);
    last.send(boost::asio::buffer("\r\n\r\n"s), 0, ignored);
  }
  service.join();
}

TEST_CASE("an address without a server is reported after the configured retries") {
  const TemporaryFolder folder;
  std::string address;
  {
    const TestServer server(folder);
    address = server.address();
  }
  checkError(
      runClient("train", folder.path("refused"),
                {"--server", address, "--set", "connect.retry_seconds=0.6"}),
      kFailedRun,
      {"[no-server]", "cannot connect to " + address + ": Connection refused; retrying in 0.",
       "start it there: cleave-server serve"});
  CHECK_FALSE(std::filesystem::exists(folder.path("refused")));
  // A host name that does not exist is not retried.
  const Ended noHost =
      runClient("train", folder.path("name"),
                {"--server", "no such host:4800", "--set", "connect.retry_seconds=100000"});
  checkError(noHost, kWrongUse,
             {"[no-such-host]", "--server no such host:4800: there is no host 'no such host'",
              "check the name"});
  CHECK_THAT(noHost.errors, !Catch::Matchers::Contains("retrying"));
}

TEST_CASE("requests that the server's policy forbids are refused with a hint") {
  struct Row {
    std::string name;
    Arguments policy;
    Arguments run;
    int code;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows = {
      {"model",
       {"--set", "models.allow=[small_cnn]"},
       {},
       kWrongUse,
       {"[model-not-allowed]", "does not allow the model mlp", "use one of small_cnn",
        "models.allow"}},
      {"memory",
       {"--set", "limits.memory_mib=3"},
       {"--set", "model.width=4096"},
       kWrongUse,
       {"[not-enough-memory]", "the run needs ",
        " MiB on the server, which has 3 MiB left of 3 MiB (limits.memory_mib",
        "use a smaller batch (train.batch)", "the largest part, ", " MiB, is for "}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    const TemporaryFolder folder;
    TestServer server(folder, row.policy);
    Arguments all = row.run;
    all.insert(all.end(), {"--server", server.address()});
    std::vector<std::string> says = row.says;
    says.push_back("the server at " + server.address() + " refuses: ");  // the location
    checkError(runClient("train", folder.path("client"), all), row.code, says);
    CHECK(server.process().waitForOutput("refused: ", kPatience));
  }
}

TEST_CASE("if only evaluation needs too much memory, the refusal names the batch that fits") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "limits.memory_mib=64"});
  const Arguments large = {"--server", server.address(),       "--set", "model.width=256",
                           "--set",    "data.test.size=65536", "--set", "eval.batch=65536"};
  checkError(runClient("train", folder.path("refused"), large), kWrongUse,
             {"[not-enough-memory]", "left of 64 MiB",
              "lower eval.batch, whose batches of 65536 samples are larger than those of "
              "train.batch, 32: --set eval.batch=32; or use a smaller batch"});
  const Ended fits =
      runClient("train", folder.path("run"), with(large, {"--set", "eval.batch=32"}));
  INFO(fits.errors);
  CHECK(fits.code == 0);
  // A batch that is not larger than those of training is not to blame.
  const Ended small =
      runClient("train", folder.path("small"),
                with(large, {"--set", "eval.batch=32", "--set", "model.width=4096"}));
  checkError(small, kWrongUse, {"[not-enough-memory]", "use a smaller batch"});
  CHECK_THAT(small.errors, !Catch::Matchers::Contains("eval.batch"));
}

TEST_CASE("a client beyond the server's limit is refused, or waits until there is room") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.sessions=1"});
  Process first = startSlowClient(folder.path("first"), server.address());
  waitForSteps(folder.path("first"));
  const std::vector<std::string> says = {
      "the server at " + server.address() +
          " refuses: this server already has its maximum of 1 sessions",
      "limits.sessions"};
  // The server requests a retry later than this client may wait.
  checkError(runClient("train", folder.path("second"),
                       {"--server", server.address(), "--set", "connect.retry_seconds=2"}),
             kFailedRun,
             {"[too-many-sessions]", says.at(0), says.at(1), "retry when a session has ended"});
  // A client that may wait is served as soon as there is room.
  const Process third = startClient("train", folder.path("third"), {"--server", server.address()});
  REQUIRE(third.waitForOutput("retrying in 5.00 s", kPatience));
  CHECK_THAT(third.errors(), Catch::Matchers::Contains(says.at(0)));
  first.signal(SIGINT);
  CHECK(finish(third).code == 0);
}

TEST_CASE("bytes that are corrupted in transit are detected") {
  for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
    const TemporaryFolder folder;
    TestServer server(folder);
    Relay relay("127.0.0.1", server.port());
    const std::string address = "127.0.0.1:" + std::to_string(relay.port());
    Process client = startSlowClient(folder.path("client"), address);
    waitForSteps(folder.path("client"));
    relay.damage(way);
    // A damaged payload is detected by its checksum and sent again over a new connection. A damaged
    // header may look like a violation of the protocol.
    const bool isHealed = client.waitForOutput("reconnected to", kPatience);
    client.signal(SIGINT);
    if (isHealed) {
      checkError(finish(client), kFailedRun, {"[interrupted]"});
    } else {
      checkError(finish(client), kFailedRun, {"[bad-metadata]", "try again"});
    }
    checkFilesComplete(folder.path("client"));
    CHECK(server.process().waitForOutput("ended: ", kPatience));
  }
}

}  // namespace
}  // namespace cleave::test
