// The page /metrics of client and server: during real training, within TLS, scraped by a real
// Prometheus, and with invalid settings.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"
#include "tests/support/network/http_get.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const Arguments kListen = {"--set", "metrics.listen=127.0.0.1:0"};

// Repeats `attempt` until it returns true.
template <typename Attempt>
void waitUntil(const std::string& what, Attempt attempt) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kPatience) {
    if (attempt()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("never: " << what);
}

// The port of the metrics, from the program's log.
std::uint16_t metricsPort(const Process& process) {
  const std::string before = "metrics at http://127.0.0.1:";
  waitUntil("the log shows the address of the metrics", [&] {
    return process.errors().find("/metrics", process.errors().find(before)) != std::string::npos;
  });
  const std::string log = process.errors();
  return static_cast<std::uint16_t>(std::stoi(log.substr(log.find(before) + before.size())));
}

// The value of the sample "name{labels}"; 0 if it is missing.
class Metrics {
 public:
  explicit Metrics(std::uint16_t port) : text_(httpGet(port, "/metrics")) {
    std::istringstream lines(text_);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line.front() == '#') continue;
      const std::size_t space = line.rfind(' ');
      values_[line.substr(0, space)] = std::stod(line.substr(space + 1));
    }
  }
  double operator[](const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? 0 : found->second;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::map<std::string, double> values_;
};

std::string flowLabels(const std::string& flow) {
  const bool up = flow == "activation/0" || flow == "gradient/1";
  return std::string("{direction=\"") + (up ? "up" : "down") + "\",flow=\"" + flow + "\"}";
}

// Compares the metrics of one side with the sums over its files, after its run has ended.
void checkSums(const Metrics& metrics, const std::string& prefix, const std::string& folder) {
  const auto transfers = readCsv(folder + "/transfers.csv");
  const auto steps = readCsv(folder + "/steps.csv");
  for (const char* flow : {"activation/0", "activation/1", "gradient/1", "gradient/0"}) {
    CAPTURE(flow);
    CHECK(metrics[prefix + "transfer_wire_bytes_total" + flowLabels(flow)] ==
          sumOf(transfers, "wire_bytes", {{"flow", flow}}));
    CHECK(metrics[prefix + "transfer_raw_bytes_total" + flowLabels(flow)] ==
          sumOf(transfers, "raw_bytes", {{"flow", flow}}));
  }
  for (const char* phase : {"train", "eval"}) {
    const std::string labels = std::string("{phase=\"") + phase + "\"}";
    std::size_t count = 0;
    for (const CsvRow& row : steps) count += row.at("phase") == phase ? 1 : 0;
    CHECK(metrics[prefix + "steps_total" + labels] == static_cast<double>(count));
    CHECK(metrics[prefix + "samples_total" + labels] ==
          sumOf(steps, "samples", {{"phase", phase}}));
    CHECK(metrics[prefix + "step_seconds_sum" + labels] ==
          Approx(sumOf(steps, "seconds", {{"phase", phase}})).epsilon(1e-6));
  }
  CHECK(metrics[prefix + "action_seconds_total{action=\"BodyForward\"}"] ==
        Approx(sumOf(steps, "body_forward_seconds")).epsilon(1e-6));
  CHECK(metrics[prefix + "codec_seconds_total{work=\"encode\"}"] ==
        Approx(sumOf(steps, "encode_seconds")).epsilon(1e-6));
  for (const char* direction : {"up", "down"}) {
    CHECK(metrics[prefix + "control_bytes_total{direction=\"" + direction + "\"}"] ==
          sumOf(steps, std::string("control_") + direction + "_bytes"));
  }
}

// The figures of the only identity are those of the server.
void checkIdentity(const Metrics& metrics) {
  const auto ofLocal = [&](const std::string& name) {
    return metrics["cleave_server_identity_" + name + "{identity=\"local\"}"];
  };
  CHECK(ofLocal("sessions") == 0);
  CHECK(ofLocal("sessions_total") == 1);
  CHECK(ofLocal("steps_total") == metrics["cleave_server_steps_total{phase=\"train\"}"]);
  double total = 0;
  for (const char* action : {"BodyForward", "BodyBackward", "BodyWeights", "Report", "Update"}) {
    total += metrics[std::string("cleave_server_action_seconds_total{action=\"") + action + "\"}"];
  }
  CHECK(ofLocal("device_seconds_total") == Approx(total).epsilon(1e-6));
  CHECK(ofLocal("up_bytes_total") > 0);
  CHECK(ofLocal("down_bytes_total") > 0);
  CHECK(ofLocal("store_bytes") > 0);
}

// The account in the store has what the metrics had.
void checkUsage(const Metrics& metrics, const std::string& store, const std::string& run) {
  const auto usage = [&](const Arguments& more) {
    const Ended ended =
        finish(Process::start(with({serverProgram(), "usage", "--set", "store=" + store}, more)));
    INFO(ended.errors);
    CHECK(ended.code == 0);
    return ended.output;
  };
  const auto json = nlohmann::json::parse(usage({"--json", "--runs"}));
  REQUIRE(json.at("identities").size() == 1);
  const auto& local = json.at("identities").at(0);
  const auto counted = [&](const char* name) {
    return metrics[std::string("cleave_server_identity_") + name + "{identity=\"local\"}"];
  };
  CHECK(local.at("identity") == "local");
  CHECK(local.at("sessions") == counted("sessions_total"));
  CHECK(local.at("steps") == counted("steps_total"));
  CHECK(local.at("device_seconds").get<double>() ==
        Approx(counted("device_seconds_total")).epsilon(1e-6));
  CHECK(local.at("bytes_up") == counted("up_bytes_total"));
  CHECK(local.at("bytes_down") == counted("down_bytes_total"));
  CHECK(local.at("disk_bytes") > 0);
  REQUIRE(local.at("runs").size() == 1);
  CHECK(run.ends_with(local.at("runs").at(0).at("run").get<std::string>()));
  CHECK_THAT(usage({}), Contains("identity") && Contains("local"));
  CHECK_THAT(usage({"--identity", "nobody"}), Contains("no usage"));
}

// Each line is an object, and those of the run name it and its identity.
void checkJsonLog(const std::string& log, const std::string& run) {
  std::istringstream lines(log);
  std::size_t ofRun = 0;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    REQUIRE(json.is_object());
    CHECK(json.at("time").get<std::string>().size() ==
          std::string("2026-01-31T12:34:56.789Z").size());
    CHECK(json.at("logger") == "cleave-server");
    CHECK_FALSE(json.at("message").get<std::string>().empty());
    CHECK_FALSE(json.at("level").get<std::string>().empty());
    if (!json.contains("run")) continue;
    ++ofRun;
    CHECK(json.at("identity") == "local");
    CHECK(run.ends_with(json.at("run").get<std::string>()));
  }
  CHECK(ofRun >= 3);
}

}  // namespace

TEST_CASE("the metrics of both sides follow a training run and match the sums of its files") {
  const TemporaryFolder folder;
  std::ofstream(folder.path("access.yaml")) << "local: {}\n";
  TestServer server(folder, with(kListen, {"--set", "log.format=json", "--set",
                                           "access.file=" + folder.path("access.yaml"), "--set",
                                           "metrics.identity_label=true"}));
  const std::uint16_t serverPort = metricsPort(server.process());
  const std::string steps = "_steps_total{phase=\"train\"}";
  {
    Process client = startSlowClient(folder.path("client"), server.address(), kListen);
    const std::uint16_t clientPort = metricsPort(client);
    double seen = 0;
    for (int i = 0; i < 3; ++i) {
      waitUntil("more steps at the client",
                [&] { return Metrics(clientPort)["cleave_client" + steps] > seen; });
      seen = Metrics(clientPort)["cleave_client" + steps];
      CHECK(Metrics(serverPort)["cleave_server" + steps] + 1 >= seen);
    }
    const Metrics mine(clientPort), its(serverPort);
    CHECK(mine["cleave_client_action_seconds_total{action=\"TailStep\"}"] > 0);
    CHECK(mine["cleave_client_transfer_seconds_count{direction=\"up\"}"] > 0);
    CHECK_THAT(mine.text(), Contains("cleave_client_outbox_entries ") &&
                                Contains("cleave_client_mailbox_entries ") &&
                                Contains("cleave_client_build_info{revision="));
    CHECK(its["cleave_server_sessions{kind=\"run\"}"] == 1);
    CHECK(its["cleave_server_connections"] == 1);
    CHECK(its["cleave_server_admitted_memory_bytes"] > 0);
    CHECK(its["cleave_server_memory_limit_bytes"] == 8192.0 * (1 << 20));
    CHECK(its["process_resident_memory_bytes"] > 1e7);
    client.signal(SIGINT);
    finish(client);
  }
  // A session's last rows may be written just before the session ends.
  waitUntil("the session has ended",
            [&] { return Metrics(serverPort)["cleave_server_sessions{kind=\"run\"}"] == 0; });
  const Metrics after(serverPort);
  CHECK(after["cleave_server_sessions_total{kind=\"run\"}"] == 1);
  CHECK(after["cleave_server_admitted_memory_bytes"] == 0);
  server.stop();
  const auto runs = server.runFolders();
  REQUIRE(runs.size() == 1);
  checkSums(after, "cleave_server_", runs[0]);
  checkIdentity(after);
  checkUsage(after, folder.path("store"), runs[0]);
  checkJsonLog(server.process().errors(), runs[0]);
}

TEST_CASE(
    "refusals, probes and certificates are counted at the server, and no metric names a client") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server"), alice = certificates.path("alice");
  authority.writeServer(own);
  authority.write(alice, "client", clientRequest());
  TestServer server(folder, with(kListen, {"--set", "tls.enabled=true", "--set",
                                           "tls.folder=" + own, "--set", "models.allow=[mlp]"}));
  const std::uint16_t port = metricsPort(server.process());
  const Arguments to = {"--server", server.address(), "--tls", alice};
  const Ended probed =
      ask(with({"probe", "--max-size", "1kB", "--repeat", "1", "--seconds", "0.2"}, to));
  INFO(probed.errors);
  CHECK(probed.code == 0);
  const Ended refused =
      runClient("train", folder.path("client"), with({"--set", "model={name: small_cnn}"}, to));
  CHECK(refused.code == kWrongUse);
  waitUntil("both connections are closed",
            [&] { return Metrics(port)["cleave_server_connections"] == 0; });
  const Metrics metrics(port);
  CHECK(metrics["cleave_server_sessions_total{kind=\"probe\"}"] == 1);
  CHECK(metrics["cleave_server_sessions_total{kind=\"run\"}"] == 0);
  CHECK(metrics["cleave_server_refusals_total{reason=\"model-not-allowed\"}"] == 1);
  const double month = 30 * 86400.0;
  CHECK(metrics["cleave_server_certificate_remaining_seconds{file=\"server.crt\"}"] ==
        Approx(month).margin(86400));
  CHECK(metrics["cleave_server_certificate_remaining_seconds{file=\"ca.crt\"}"] > month);
  CHECK_THAT(metrics.text(), !Contains("alice"));
}

TEST_CASE("Prometheus scrapes both client and server") {
  const TemporaryFolder folder;
  TestServer server(folder, kListen);
  Process client = startSlowClient(folder.path("client"), server.address(), kListen);
  const auto target = [](const Process& process) {
    return "127.0.0.1:" + std::to_string(metricsPort(process));
  };
  std::ofstream(folder.path("prometheus.yml"))
      << "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
      << "scrape_configs:\n"
      << "  - job_name: cleave\n"
      << "    static_configs: [{targets: ['" << target(server.process()) << "', '" << target(client)
      << "']}]\n";
  const std::uint16_t port = freePorts(1).front();
  const Process prometheus =
      Process::start({CLEAVE_PROMETHEUS, "--config.file=" + folder.path("prometheus.yml"),
                      "--storage.tsdb.path=" + folder.path("tsdb"),
                      "--web.listen-address=127.0.0.1:" + std::to_string(port)});
  // The value of a query; empty if the query has no result yet.
  const auto query = [&](const std::string& expression) -> std::optional<double> {
    try {
      const auto answer = nlohmann::json::parse(httpGet(port, "/api/v1/query?query=" + expression));
      const auto& result = answer.at("data").at("result");
      if (result.empty()) return std::nullopt;
      return std::stod(result.at(0).at("value").at(1).get<std::string>());
    } catch (const std::exception&) {
      return std::nullopt;  // Prometheus is not ready yet
    }
  };
  waitUntil("Prometheus scrapes both", [&] { return query("sum(up)") == 2; });
  for (const char* expression :
       {"sum(cleave_server_steps_total)", "sum(cleave_client_steps_total)",
        "sum(cleave_server_transfer_wire_bytes_total)",
        "sum(rate(cleave_client_step_seconds_count[10s]))",
        "histogram_quantile(0.5,sum(cleave_client_transfer_seconds_bucket)by(le))"}) {
    CAPTURE(expression);
    waitUntil(expression, [&] { return query(expression).value_or(0) > 0; });
  }
  CHECK(query("cleave_server_sessions{kind=\"run\"}") == 1);
}

TEST_CASE("metrics are served on loopback only, unless configured otherwise") {
  const TemporaryFolder folder;
  boost::asio::io_context context;
  const boost::asio::ip::tcp::acceptor taken(context, {boost::asio::ip::address_v4::loopback(), 0});
  const std::string used = "127.0.0.1:" + std::to_string(taken.local_endpoint().port());
  const auto table = [&](const std::string& name) -> std::vector<Mistake> {
    return {
        {name + ", open to the network",
         {"--set", "metrics.listen=0.0.0.0:0"},
         kWrongUse,
         {"[unsafe-bind]", "metrics.listen: listening on 0.0.0.0 without TLS would show everything",
          "--set metrics.anywhere=true"}},
        {name + ", port in use",
         {"--set", "metrics.listen=" + used},
         kWrongUse,
         {"[port-in-use]", "cannot listen on " + used + ": another program already uses the port",
          "--set metrics.listen=127.0.0.1:"}},
        {name + ", no port",
         {"--set", "metrics.listen=localhost"},
         kWrongUse,
         {"[bad-address]", "metrics.listen: 'localhost' has no port", "write HOST:PORT"}},
        {name + ", a name",
         {"--set", "metrics.listen=localhost:9464"},
         kWrongUse,
         {"[bad-address]", "metrics.listen: 'localhost:9464' is not an IP address with a port"}},
        {name + ", another key",
         {"--set", "metrics.port=9464"},
         kWrongUse,
         {"[config-unknown-key]", "metrics.port"}},
    };
  };
  checkMistakes({serverProgram(), "serve", "--set", "listen.port=0", "--set",
                 "store=" + folder.path("store")},
                table("server"));
  TestServer server(folder);
  CHECK_THAT(server.process().errors(), !Contains("metrics at"));
  checkMistakes({clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--server",
                 server.address(), "--run-dir", folder.path("client")},
                table("client"));
}

}  // namespace cleave::test
