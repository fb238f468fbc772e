// Prometheus metrics: the table in docs/metrics.md, the values, and the format.
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/http/http_server.h"
#include "common/run/metrics.h"
#include "common/run/metrics_table.h"
#include "tests/support/network/http_get.h"

namespace cleave {
namespace {

using Catch::Contains;

const char* kindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::counter:
      return "counter";
    case MetricKind::gauge:
      return "gauge";
    case MetricKind::histogram:
      return "histogram";
  }
  return "";
}

// A temporary file.
struct TextFile {
  explicit TextFile(const std::string& text) {
    static int count = 0;
    path = (std::filesystem::temp_directory_path() /
            ("cleave-metrics-" + std::to_string(::getpid()) + "-" + std::to_string(count++)))
               .string();
    std::ofstream(path) << text;
  }
  ~TextFile() { std::filesystem::remove(path); }
  std::string path;
};

// Runs promtool; returns its exit status and its output.
std::pair<int, std::string> promtool(const std::string& arguments) {
  std::string said;
  FILE* const pipe = ::popen((CLEAVE_PROMTOOL " " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) said += line;
  return {::pclose(pipe), said};
}

std::string sourceFile(const std::string& name) {
  std::ifstream file(CLEAVE_SOURCE_DIR "/" + name);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Checks that each metric in `text` is in the table, and returns how many different ones it names.
std::size_t checkNames(const std::string& text) {
  std::set<std::string> known;
  for (const MetricRow& row : metricTable()) {
    for (const Role role : {Role::client, Role::server}) {
      if (!(role == Role::client ? row.client : row.server)) continue;
      const std::string name = metricName(row, role);
      known.insert(name);
      if (row.kind != MetricKind::histogram) continue;
      for (const char* part : {"_bucket", "_sum", "_count"}) known.insert(name + part);
    }
  }
  const std::regex pattern("(cleave_(client|server)|process)_[a-z_]+");
  std::set<std::string> named;
  for (std::sregex_iterator found(text.begin(), text.end(), pattern), end; found != end; ++found) {
    named.insert(found->str());
  }
  for (const std::string& name : named) {
    INFO(name);
    CHECK(known.contains(name));
  }
  return named.size();
}

// Collects the queries of a dashboard's panels.
void collectQueries(const nlohmann::json& json, std::vector<std::string>& queries) {
  if (json.is_object() && json.contains("expr")) queries.push_back(json.at("expr"));
  for (const auto& child : json) {
    if (child.is_structured()) collectQueries(child, queries);
  }
}

// A row of the code's table of metrics, in the format of docs/metrics.md.
std::string documentationOf(const MetricRow& row) {
  std::string labels;
  for (const std::string& label : row.labels) {
    labels += (labels.empty() ? "`" : ", `") + label + "`";
  }
  const char* const who = row.client && row.server ? "both" : row.client ? "client" : "server";
  return "`" + std::string(row.name) + "`|" + kindName(row.kind) + "|" + labels + "|" + who + "|" +
         std::string(row.help);
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// The rows of the table between the markers, with cells joined by '|'.
std::vector<std::string> documented() {
  const std::string text = sourceFile("docs/metrics.md");
  const auto start = text.find("<!-- begin:prometheus -->\n");
  const auto end = text.find("<!-- end:prometheus -->");
  REQUIRE(start < end);
  REQUIRE(end != std::string::npos);
  std::istringstream lines(text.substr(start, end - start));
  std::vector<std::string> rows;
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    if (number < 3) continue;  // the marker and the table's header
    std::string row;
    std::istringstream cells(line.substr(1));
    for (std::string cell; std::getline(cells, cell, '|');) {
      row += (row.empty() ? "" : "|") + trimmed(cell);
    }
    rows.push_back(row);
  }
  return rows;
}

// "name{labels}" -> value.
std::map<std::string, double> valuesOf(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t space = line.rfind(' ');
    const bool isNew =
        values.emplace(line.substr(0, space), std::strtod(line.c_str() + space, nullptr)).second;
    INFO(line);
    CHECK(isNew);
  }
  return values;
}

std::set<std::string> familiesOf(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) names.insert(line.substr(7, line.rfind(' ') - 7));
  }
  return names;
}

// Returns a sample of each metric whose value is polled.
Samples everySample(Role role) {
  const std::set<std::string> known = familiesOf(Metrics(role).text());
  Samples samples;
  for (const MetricRow& row : metricTable()) {
    const bool isHere = role == Role::client ? row.client : row.server;
    if (!isHere || known.contains(metricName(row, role))) continue;
    samples.push_back({row.name, 1, row.labels.empty() ? "" : "x"});
  }
  return samples;
}

TransferRecord transferOf(Flow flow, bool sent) {
  TransferRecord record;
  record.sent = sent;
  record.key.flow = flow;
  record.rawBytes = 4000;
  record.wireBytes = 1000;
  record.encodeSeconds = 0.001;
  record.queueSeconds = 0.002;
  record.wireSeconds = 0.01;
  record.decodeSeconds = 0.004;
  return record;
}

StepRow stepOf(Phase phase, std::uint32_t samples, double seconds) {
  StepRow row;
  row.phase = phaseName(phase);
  row.at = MicroBatch{phase, 1, 0, {4, samples}};
  row.seconds = seconds;
  row.actions[indexOf(ActionKind::headForward)] = 0.25;
  row.actions[indexOf(ActionKind::bodyForward)] = 0.5;
  return row;
}

}  // namespace

TEST_CASE("docs/metrics.md lists all metrics") {
  std::vector<std::string> expected;
  for (const MetricRow& row : metricTable()) expected.push_back(documentationOf(row));
  CHECK(documented() == expected);
}

TEST_CASE("transfers and steps are counted by flow, direction, phase and action") {
  Metrics metrics(Role::client);
  metrics.transfer(transferOf(activationAt(0), true));
  metrics.transfer(transferOf(activationAt(0), true));
  metrics.transfer(transferOf(activationAt(1), false));
  metrics.transfer(transferOf(kWeightsBody, true));
  metrics.transfer(transferOf(kWeightsBody, false));
  TransferRecord lost = transferOf(gradientAt(1), true);  // a tensor that is never acknowledged
  lost.wireSeconds.reset();
  metrics.transfer(lost);
  LinkTotals before, after;
  after.encodeSeconds = 2;
  after.controlUp = 70;
  metrics.step(stepOf(Phase::train, 64, 0.5), before, after);
  metrics.step(stepOf(Phase::eval, 256, 0.75), after, after);
  StepRow bye;
  before = after;
  after.controlDown = 30;
  metrics.step(bye, before, after);

  auto values = valuesOf(metrics.text());
  const std::string prefix = "cleave_client_";
  const auto value = [&](const std::string& name) {
    INFO(name);
    REQUIRE(values.contains(prefix + name));
    return values.at(prefix + name);
  };
  CHECK(value("transfer_wire_bytes_total{direction=\"up\",flow=\"activation/0\"}") == 2000);
  CHECK(value("transfer_raw_bytes_total{direction=\"up\",flow=\"activation/0\"}") == 8000);
  CHECK(value("transfer_wire_bytes_total{direction=\"down\",flow=\"activation/1\"}") == 1000);
  CHECK(value("transfer_wire_bytes_total{direction=\"up\",flow=\"weights/body\"}") == 1000);
  CHECK(value("transfer_wire_bytes_total{direction=\"down\",flow=\"weights/body\"}") == 1000);
  CHECK(value("transfer_wire_bytes_total{direction=\"up\",flow=\"gradient/1\"}") == 1000);
  CHECK(value("transfer_seconds_count{direction=\"up\"}") == 3);
  CHECK(value("transfer_seconds_sum{direction=\"down\"}") == Approx(2 * 0.017));
  CHECK(value("transfer_bytes_per_second_bucket{direction=\"up\",le=\"30000\"}") == 0);
  CHECK(value("transfer_bytes_per_second_bucket{direction=\"up\",le=\"100000\"}") == 3);
  CHECK(value("steps_total{phase=\"train\"}") == 1);
  CHECK(value("samples_total{phase=\"eval\"}") == 256);
  CHECK(value("step_seconds_sum{phase=\"eval\"}") == 0.75);
  CHECK(value("action_seconds_total{action=\"HeadForward\"}") == 0.5);
  CHECK_FALSE(values.contains(prefix + "action_seconds_total{action=\"BodyForward\"}"));
  CHECK(value("codec_seconds_total{work=\"encode\"}") == 2);
  CHECK(value("control_bytes_total{direction=\"up\"}") == 70);
  CHECK(value("control_bytes_total{direction=\"down\"}") == 30);
  CHECK(values.at("process_resident_memory_bytes") > 1e6);
  CHECK(values.at("process_start_time_seconds") ==
        Approx(static_cast<double>(std::time(nullptr))).margin(60));
}

TEST_CASE("at the server, received tensors count as up") {
  Metrics metrics(Role::server);
  metrics.transfer(transferOf(activationAt(0), false));
  metrics.step(stepOf(Phase::train, 64, 0.5), {}, {});
  const auto values = valuesOf(metrics.text());
  CHECK(values.at("cleave_server_transfer_wire_bytes_total{direction=\"up\",flow=\"activation/"
                  "0\"}") == 1000);
  CHECK(values.at("cleave_server_action_seconds_total{action=\"BodyForward\"}") == 0.5);
}

TEST_CASE("every metric of the table is served, and promtool accepts the output") {
  for (const Role role : {Role::client, Role::server}) {
    Metrics metrics(role);
    metrics.sampleWith([&] { return everySample(role); });
    const std::string text = metrics.text();
    std::set<std::string> expected;
    for (const MetricRow& row : metricTable()) {
      if (role == Role::client ? row.client : row.server) expected.insert(metricName(row, role));
    }
    CHECK(familiesOf(text) == expected);

    const TextFile file(text);
    const auto [code, said] = promtool("check metrics < " + file.path);
    INFO(said);
    CHECK(code == 0);
    CHECK(said.empty());
  }
}

TEST_CASE("the alert rules are valid, and every metric in them exists") {
  const auto [code, said] =
      promtool("check rules " CLEAVE_SOURCE_DIR "/packaging/prometheus/alerts.yaml");
  INFO(said);
  CHECK(code == 0);
  CHECK(checkNames(sourceFile("packaging/prometheus/alerts.yaml")) >= 8);
}

TEST_CASE("the queries of the dashboard are valid, and every metric in them exists") {
  const std::string text = sourceFile("packaging/grafana/cleave.json");
  CHECK(checkNames(text) >= 20);
  std::vector<std::string> queries;
  collectQueries(nlohmann::json::parse(text), queries);
  REQUIRE(queries.size() > 20);
  // promtool checks rules only, so each query becomes one.
  nlohmann::json rules = nlohmann::json::array();
  for (std::string query : queries) {
    for (const char* variable : {"$__rate_interval", "$__range"}) {
      for (std::size_t at; (at = query.find(variable)) != std::string::npos;) {
        query.replace(at, std::string(variable).size(), "5m");
      }
    }
    rules.push_back({{"record", "query_" + std::to_string(rules.size())}, {"expr", query}});
  }
  const TextFile file(
      nlohmann::json{{"groups", {{{"name", "dashboard"}, {"rules", rules}}}}}.dump());
  const auto [code, said] = promtool("check rules " + file.path);
  INFO(said);
  CHECK(code == 0);
}

TEST_CASE("threads may record during a scrape without losing counts") {
  Metrics metrics(Role::client);
  HttpSettings settings;
  settings.listen = {"test", "127.0.0.1:0"};
  const HttpServer server(settings, {{"/metrics", [&](const HttpRequest&) {
                                        return HttpAnswer{200, "text/plain", metrics.text()};
                                      }}});
  constexpr int kEach = 5000;
  std::atomic<int> recording = 2;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) {
        metrics.transfer(transferOf(gradientAt(1), true));
        metrics.step(stepOf(Phase::train, 2, 0.5), {}, {});
      }
      --recording;
    });
  }
  int asked = 0;
  while (recording > 0 || asked == 0) {
    CHECK_THAT(test::httpGet(server.port(), "/metrics"), Contains("cleave_client_steps_total"));
    ++asked;
  }
  for (std::thread& thread : threads) thread.join();
  const auto values = valuesOf(metrics.text());
  CHECK(values.at("cleave_client_steps_total{phase=\"train\"}") == 2 * kEach);
  CHECK(values.at("cleave_client_transfer_seconds_count{direction=\"up\"}") == 2 * kEach);
}

}  // namespace cleave
