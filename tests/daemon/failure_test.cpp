// What goes wrong says so, ends in time, and leaves complete files: each fault is provoked with
// real daemons.
#include <csignal>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Long enough to be met in the middle: each micro-batch waits.
const Arguments kSlow = {"--set", "wait={F1: 1, B1: 1}", "--set", "train.epochs=1000",
                         "--set", "eval.every=0"};

Process startSlowClient(const std::string& folder, const std::string& server) {
  Arguments arguments = kSlow;
  arguments.insert(arguments.end(), {"--server", server});
  return startClient("train", folder, arguments);
}

// Waits until some steps are in the client's file.
void waitForSteps(const std::string& folder) {
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kPatience) {
    std::error_code none;
    if (std::filesystem::file_size(folder + "/steps.csv", none) > 4096 && !none) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("no steps were recorded in " << folder);
}

void checkFilesComplete(const std::string& folder) {
  CHECK(readCsv(folder + "/transfers.csv").size() > 10);
  const auto steps = readCsv(folder + "/steps.csv");
  CHECK(steps.size() > 3);
  CHECK(steps.back().at("phase") == "bye");
}

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

TEST_CASE(
    "without a server the client tries again for the set time, and says why each time failed") {
  const TemporaryFolder folder;
  std::string address;
  {
    const TestServer server(folder);
    address = server.address();
  }
  const Ended ended = runClient("train", folder.path("client"),
                                {"--server", address, "--set", "connect.retry_seconds=0.6"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("cannot connect to " + address +
                                    ": Connection refused; trying again in 0.25 s"));
  CHECK_THAT(ended.errors, Contains("cleave-server serve"));
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

TEST_CASE("a port in use") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Ended ended = finish(Process::start(
      {serverProgram(), "serve", "--set", "listen.port=" + std::to_string(server.port())}));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("another program does already"));
  CHECK_THAT(ended.errors, Contains("--set listen.port=" + std::to_string(server.port() + 1)));
}

TEST_CASE("listening beyond loopback needs --insecure-bind, and warns") {
  const Ended refused = finish(Process::start(
      {serverProgram(), "serve", "--set", "listen.address=0.0.0.0", "--set", "listen.port=0"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Contains("--insecure-bind"));
  Process allowed = Process::start({serverProgram(), "serve", "--insecure-bind", "--set",
                                    "listen.address=0.0.0.0", "--set", "listen.port=0"});
  REQUIRE(allowed.waitForOutput(" listens on ", kPatience));
  allowed.signal(SIGTERM);
  const Ended ended = finish(allowed);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("without encryption or authentication"));
}

// The end of a command that must not get as far as a server.
Ended wrongUse(const Arguments& more) {
  const TemporaryFolder folder;
  return runClient("train", folder.path("client"), more);
}

TEST_CASE("mistakes in the configuration name place and nearest key, and end with 2") {
  const TemporaryFolder folder;
  const std::string path = folder.path("wrong.yaml");
  std::ofstream(path)
      << "run:\n  name: wrong\nmodel: {name: mlp}\ndata: {format: synthetic, shape: [4]}\n"
      << "train:\n  batchs: 16\n";
  const Ended ended = finish(Process::start(
      {clientProgram(), "train", "--config", path, "--run-dir", folder.path("run")}));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains(path + ":6"));
  CHECK_THAT(ended.errors, Contains("train.batchs"));
  CHECK_THAT(ended.errors, Contains("train.batch?"));
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("mistakes in overrides name the override, and end with 2") {
  const auto errorsOf = [](const Arguments& arguments) {
    const Ended ended = wrongUse(arguments);
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(errorsOf({"--set", "train.epoch=3"}), Contains("train.epochs"));
  CHECK_THAT(errorsOf({"--set", "train.batch=many"}), Contains("--set train.batch=many"));
  CHECK_THAT(errorsOf({"--set", "train.micro_batches=33"}),
             Contains("33 micro-batches cannot be made of a batch of 32"));
  CHECK_THAT(errorsOf({"--set", "train.schedule=1f2b"}), Contains("did you mean 1f1b?"));
  CHECK_THAT(errorsOf({"--set", "codec=unifrom:bits=8"}), Contains("uniform"));
  CHECK_THAT(errorsOf({"--set", "codec=uniform:bits=17"}), Contains("16"));
  CHECK_THAT(errorsOf({"--set", "codec={activation/2: none}"}), Contains("activation/2"));
  CHECK_THAT(errorsOf({"--set", "model.name=mpl"}), Contains("mlp"));
  CHECK_THAT(errorsOf({"--set", "model.widht=8"}), Contains("width"));
  CHECK_THAT(errorsOf({"--set", "model.cuts=[3, 90]"}), Contains("fc1"));
  CHECK_THAT(errorsOf({"--set", "train.optimizer.momentun=0.5"}), Contains("momentum"));
  CHECK_THAT(errorsOf({"--server", "nowhere"}), Contains("HOST:PORT"));
  CHECK_THAT(errorsOf({"--log-level", "loud"}), Contains("loud"));
}

TEST_CASE("a run directory that holds something is not overwritten") {
  const TemporaryFolder folder;
  const std::string client = folder.path("client");
  std::filesystem::create_directories(client);
  std::ofstream(client + "/precious") << "keep";
  const Ended ended = runClient("train", client, {});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("exists already"));
  CHECK(readFile(client + "/precious") == "keep");
}

TEST_CASE("missing or damaged data") {
  const TemporaryFolder folder;
  const auto errorsOf = [&](const std::string& path) {
    const std::string data = "data={format: idx, train: {images: " + path + ", labels: " + path +
                             "}, test: {images: " + path + ", labels: " + path + "}}";
    const Ended ended = finish(
        Process::start({clientProgram(), "train", "--config", configFile("fashion_mnist.yaml"),
                        "--run-dir", folder.path("run"), "--set", data}));
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(errorsOf(folder.path("missing.gz")), Contains("missing.gz"));
  const std::string damaged = folder.path("damaged");
  std::ofstream(damaged) << "this is no IDX file";
  CHECK_THAT(errorsOf(damaged), Contains("damaged"));
}

TEST_CASE("what the server's policy forbids is refused with its reason") {
  const auto errorsOf = [](const Arguments& policy, const Arguments& arguments) {
    const TemporaryFolder folder;
    TestServer server(folder, policy);
    Arguments all = arguments;
    all.insert(all.end(), {"--server", server.address()});
    const Ended ended = runClient("train", folder.path("client"), all);
    CHECK(ended.code == 1);
    CHECK(server.process().waitForOutput("refused: ", kPatience));
    return ended.errors;
  };
  CHECK_THAT(errorsOf({"--set", "models.allow=[small_cnn]"}, {}),
             Contains("does not allow the model mlp"));
  CHECK_THAT(errorsOf({"--set", "limits.memory_mib=1"}, {"--set", "model.width=4096"}),
             Contains("limits.memory_mib"));
}

TEST_CASE("a server that keeps its weights still trains") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "weights.fetch=false"});
  const Ended ended = runClient("train", folder.path("client"), {"--server", server.address()});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("does not hand out the body"));
  CHECK_FALSE(std::filesystem::exists(folder.path("client") + "/model.safetensors"));
}

TEST_CASE("a client pointed at another service says so") {
  boost::asio::io_context context;
  boost::asio::ip::tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  std::thread service([&] {
    auto socket = acceptor.accept();
    const std::string answer =
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    boost::system::error_code ignored;
    boost::asio::write(socket, boost::asio::buffer(answer), ignored);
    char byte = 0;
    while (socket.read_some(boost::asio::buffer(&byte, 1), ignored) > 0) {
    }
  });
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--server", "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port())});
  service.join();
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("HTTP"));
}

TEST_CASE("a NaN ends the run and says in which step") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--set", "train.learning_rate={peak: 1e6}", "--set", "train.epochs=20"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("not finite in"));
  CHECK_THAT(ended.errors, Contains("learning_rate"));
}

TEST_CASE("help and version") {
  for (const std::string& program : {serverProgram(), clientProgram()}) {
    const Ended help = finish(Process::start({program, "--help"}));
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains("Usage"));
    const Ended version = finish(Process::start({program, "--version"}));
    CHECK(version.code == 0);
    CHECK_THAT(version.output, Contains("cleave "));
    CHECK(finish(Process::start({program})).code == 2);
    CHECK(finish(Process::start({program, "trian"})).code == 2);
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
