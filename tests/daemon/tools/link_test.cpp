// cleave-link as a program: its output, records and exit codes, and training over it.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <regex>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Catch::Matchers::Contains;

std::string linkProgram() { return std::string(CLEAVE_PROGRAMS) + "/cleave-link"; }

// A cleave-link on a free port.
class TestLink {
 public:
  explicit TestLink(Arguments arguments)
      : process_([&] {
          arguments.insert(arguments.begin(), linkProgram());
          return Process::start(arguments);
        }()) {
    REQUIRE(process_.waitForOutput("listening on ", kPatience));  // includes the line break
    const std::string output = process_.output();
    REQUIRE(std::regex_match(output, std::regex("listening on 127\\.0\\.0\\.1:[0-9]+\n")));
    address_ = output.substr(13, output.size() - 14);
  }
  const std::string& address() const { return address_; }
  std::uint16_t port() const {
    return static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
  }
  Process& process() { return process_; }

 private:
  Process process_;
  std::string address_;
};

struct Target {
  asio::io_context context;
  tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  }
  tcp::socket connect(std::uint16_t port) {
    tcp::socket socket(context);
    socket.connect({asio::ip::address_v4::loopback(), port});
    return socket;
  }
};

TEST_CASE("cleave-link records and sums up the transferred bytes, and exits with 0 on a signal") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    const std::string file = folder.path("link.csv");
    Target target;
    TestLink link({"--target", target.address(), "--rate", "80Mbit/s", "--latency", "1ms",
                   "--stats", file, "--stats-interval", "100ms"});
    tcp::socket client = target.connect(link.port());
    tcp::socket server = target.acceptor.accept();
    std::vector<std::uint8_t> bytes(1'000'000);
    asio::write(client, asio::buffer(bytes));  // more than the link can hold
    asio::read(server, asio::buffer(bytes));
    asio::write(server, asio::buffer(bytes.data(), 1000));
    asio::read(client, asio::buffer(bytes.data(), 1000));
    link.process().signal(signal);
    const Ended ended = finish(link.process());
    CHECK(ended.code == 0);
    CHECK_THAT(ended.errors, Contains(" s, 1 connection; up 1.00 MB at ") &&
                                 Contains("; down 1.00 kB at ") && Contains(", 0 drops"));

    CHECK(csvHeader(file) == std::vector<std::string>{"time", "direction", "interval_seconds",
                                                      "connections", "bytes", "rate_mbit_s",
                                                      "queue_bytes", "flight_bytes", "drops",
                                                      "stall_seconds"});
    const auto rows = readCsv(file);
    CHECK(sumOf(rows, "bytes", {{"direction", "up"}}) == 1'000'000);
    CHECK(sumOf(rows, "bytes", {{"direction", "down"}}) == 1000);
    for (const CsvRow& row : rows) {
      CHECK(std::regex_match(row.at("time"),
                             std::regex("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z")));
      CHECK(std::stod(row.at("bytes")) * 8e-6 / std::stod(row.at("interval_seconds")) ==
            Approx(std::stod(row.at("rate_mbit_s"))).epsilon(1e-6));
    }
  }
}

TEST_CASE("a target that refuses is logged, and the link continues") {
  Target target;
  const std::string address = target.address();
  target.acceptor.close();
  TestLink link({"--target", address});
  tcp::socket client = target.connect(link.port());
  std::uint8_t byte = 0;
  boost::system::error_code error;
  asio::read(client, asio::buffer(&byte, 1), error);
  CHECK(error == asio::error::connection_reset);
  link.process().signal(SIGTERM);
  const Ended ended = finish(link.process());
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors,
             Contains("connection 1 is reset: the target " + address + " cannot be reached"));
}

TEST_CASE("mistakes with cleave-link are reported with a hint") {
  const TemporaryFolder folder;
  const std::string file = folder.path("link.yaml");
  std::ofstream(file) << "target: 127.0.0.1:1\nlatensy: 20ms\n";
  std::ofstream(folder.path("there.csv")) << "kept";
  Target target;
  const std::string taken = target.address();
  checkMistakes(
      {linkProgram()},
      {
          {"nothing",
           {},
           kWrongUse,
           {"[no-target]", "--target is missing", "--target 127.0.0.1:4800"}},
          {"unknown flag",
           {"--target", taken, "--latensy", "20ms"},
           kWrongUse,
           {"cleave-link has no option '--latensy'; did you mean --latency?",
            "'cleave-link --help'"}},
          {"one argument too many", {"now"}, kWrongUse, {"takes no argument 'now'"}},
          {"no unit",
           {"--target", taken, "--rate", "200"},
           kWrongUse,
           {"[bad-value]", "--rate: '200' is not a rate", "its unit is missing",
            "such as 200Mbit/s"}},
          {"mistyped key",
           {"--config", file},
           kWrongUse,
           {"[config-unknown-key]",
            "link.yaml:2: latensy is not a known key; did you mean latency?"}},
          {"--set",
           {"--set", "target=a"},
           kWrongUse,
           {"[bad-address]", "--set target=a: target: 'a' has no port"}},
          {"no such file", {"--config", folder.path("none")}, kWrongUse, {"cannot be read"}},
          {"bad event",
           {"--target", taken, "--event", "5s blackhol for 2s"},
           kWrongUse,
           {"[bad-event]", "did you mean blackhole?"}},
          {"bad log level",
           {"--target", taken, "--log-level", "loud"},
           kWrongUse,
           {"[bad-log-level]", "loud"}},
          {"open to the network",
           {"--target", taken, "--listen", "0.0.0.0:0"},
           kWrongUse,
           {"[unsafe-bind]", "would let anyone", "--insecure-bind"}},
          {"port in use",
           {"--target", taken, "--listen", taken},
           kWrongUse,
           {"[port-in-use]",
            "cannot listen on " + taken + ": another program already uses the port",
            "port 0 picks a free"}},
          {"foreign address",
           {"--target", taken, "--listen", "192.0.2.1:0", "--insecure-bind"},
           kWrongUse,
           {"[cannot-bind]", "cannot listen on 192.0.2.1:0"}},
          {"unknown host",
           {"--target", "no-such-host.invalid:1"},
           kWrongUse,
           {"[unknown-host]", "no-such-host.invalid"}},
          {"an existing stats file",
           {"--target", taken, "--stats", folder.path("there.csv")},
           kFailedRun,
           {"[cannot-write]", "there.csv: cannot be created: File exists"}},
      });
  CHECK(readFile(folder.path("there.csv")) == "kept");
}

TEST_CASE("configs/link.yaml is valid") {
  TestLink link({"--config", configFile("link.yaml"), "--listen", "127.0.0.1:0"});
  link.process().signal(SIGTERM);
  const Ended ended = finish(link.process());
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("up 200 Mbit/s, 20 ms; down 200 Mbit/s, 20 ms"));
}

TEST_CASE("the help of cleave-link shows examples and exit codes") {
  const Ended ended = finish(Process::start({linkProgram(), "--help"}));
  CHECK(ended.code == 0);
  CHECK_THAT(ended.output, Contains("--rate 200Mbit/s --latency 20ms") &&
                               Contains("--down-latency TIME") && Contains("Exit codes: 0"));
}

TEST_CASE("training over the link is bit-identical to training without it, and slower") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Ended direct = runClient("train", folder.path("direct"), {"--server", server.address()});
  REQUIRE(direct.code == 0);
  TestLink link({"--target", server.address(), "--latency", "5ms", "--rate", "100Mbit/s",
                 "--jitter", "1ms", "--loss", "0.1%"});
  const Ended across = runClient("train", folder.path("across"), {"--server", link.address()});
  INFO(across.errors);
  REQUIRE(across.code == 0);
  CHECK(readFile(folder.path("across") + "/model.safetensors") ==
        readFile(folder.path("direct") + "/model.safetensors"));
  // A step takes at least 3 round trips: the micro-batch, the body's gradient norm, and the update.
  const auto steps = readCsv(folder.path("across") + "/steps.csv");
  for (const CsvRow& row : steps) {
    if (row.at("phase") == "train") CHECK(std::stod(row.at("seconds")) >= 20e-3);
  }
  link.process().signal(SIGTERM);
  const Ended ended = finish(link.process());
  CHECK(ended.code == 0);
  server.stop();
}

}  // namespace
}  // namespace cleave::test
