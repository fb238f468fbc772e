#include "tests/daemon/daemons.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace cleave::test {
namespace {

std::vector<std::string> splitCsvLine(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t j = 0; j < line.size(); ++j) {
    const char c = line[j];
    if (c == '"' && quoted && j + 1 < line.size() && line[j + 1] == '"') {
      cells.back() += '"';
      ++j;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

}  // namespace

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string addressAt(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

Arguments failingAt(const std::string& place) { return {"/usr/bin/env", "CLEAVE_FAIL=" + place}; }

RestartableServer::RestartableServer(const TemporaryFolder& folder, const Arguments& more,
                                     const std::string& store)
    : folder_(folder), more_(more), store_(store) {
  start();
}

void RestartableServer::start(const Arguments& within) {
  Arguments arguments = more_;
  if (port_ != 0) arguments = with(arguments, {"--set", "listen.port=" + std::to_string(port_)});
  server_ = std::make_unique<TestServer>(folder_, arguments, store_, within);
  port_ = server_->port();
}

void RestartableServer::kill() {
  server_->process().signal(SIGKILL);
  server_->process().wait(kPatience);
  server_.reset();
}

void checkDone(const std::map<std::string, Process>& clients) {
  std::string all;  // a client that hangs often waits for another one
  std::vector<std::string> failed;
  for (const auto& [name, client] : clients) {
    if (client.wait(kPatience) != 0) failed.push_back(name);
    all += name + ":\n" + client.errors() + "\n";
  }
  INFO(all);
  CHECK(failed == std::vector<std::string>{});
}

void waitForText(const Process& process, const std::string& text) {
  for (int n = 0; n < 6000 && process.errors().find(text) == std::string::npos; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK_THAT(process.errors(), Catch::Matchers::Contains(text));
}

Process startResume(const std::string& run, const Arguments& more, const Arguments& within) {
  return Process::start(with(with(within, {clientProgram(), "train", "--resume", run}), more));
}

Ended resume(const std::string& run, const Arguments& more) {
  return finish(startResume(run, more));
}

std::string serverProgram() { return std::string(CLEAVE_PROGRAMS) + "/cleave-server"; }
std::string clientProgram() { return std::string(CLEAVE_PROGRAMS) + "/cleave-client"; }
std::string configFile(const std::string& name) {
  return std::string(CLEAVE_SOURCE_DIR) + "/configs/" + name;
}

TestServer::TestServer(const TemporaryFolder& folder, const Arguments& more,
                       const std::string& store, const Arguments& within)
    : store_(folder.path(store)),
      process_(Process::start(
          with(with(within, {serverProgram(), "serve", "--config", configFile("server.yaml"),
                             "--set", "listen.port=0", "--set", "store=" + store_, "--set",
                             "models.allow=[mlp, small_cnn, mobilenet_v2, graph, sleep]"}),
               more))) {
  REQUIRE(process_.waitForOutput(" listens on ", kPatience));
  REQUIRE(process_.waitForOutput("\n", kPatience));
  const std::string output = process_.output();
  port_ = static_cast<std::uint16_t>(std::stoi(output.substr(output.rfind(':') + 1)));
}

void TestServer::stop() {
  process_.signal(SIGTERM);
  const auto code = process_.wait(kPatience);
  INFO(process_.errors());
  REQUIRE(code);
  REQUIRE(*code == 0);
}

std::vector<std::string> TestServer::runFolders() const {
  std::vector<std::string> folders;
  std::error_code none;
  for (const auto& identity : std::filesystem::directory_iterator(store_, none)) {
    if (identity.path().filename().string().starts_with('.')) continue;
    for (const auto& entry : std::filesystem::directory_iterator(identity)) {
      if (entry.path().filename() != ".weights") folders.push_back(entry.path().string());
    }
  }
  return folders;
}

Process startClient(const std::string& command, const std::string& runFolder, const Arguments& more,
                    const Arguments& within) {
  return Process::start(
      with(with(within, {clientProgram(), command, "--config", configFile("synthetic.yaml"),
                         "--run-dir", runFolder, "--set", "data.train.size=256", "--set",
                         "data.test.size=64", "--set", "train.epochs=1",
                         // With `auto`, the codecs would depend on measured times.
                         "--set", "codec=block:bits=8"}),
           more));
}

Ended finish(const Process& process) {
  const auto code = process.wait(kPatience);
  INFO(process.output());
  INFO(process.errors());
  REQUIRE(code);
  return {*code, process.output(), process.errors()};
}

Ended runClient(const std::string& command, const std::string& runFolder, const Arguments& more) {
  return finish(startClient(command, runFolder, more));
}

nlohmann::json verifySteps(const std::string& run, const Arguments& more) {
  const Ended ended = runClient("verify", run,
                                with({"--json", "--steps", "2", "--set", "train.batch=30", "--set",
                                      "train.optimizer={name: sgd, momentum: 0.9}"},
                                     more));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

void checkSameModel(const std::string& expected, const std::string& run) {
  const std::string weights = readFile(expected + "/model.safetensors");
  REQUIRE_FALSE(weights.empty());
  CHECK((readFile(run + "/model.safetensors") == weights));
}

// The kernel chooses ports from 32768 on for connections and for port 0, so it does not take these.
// Tests that run at the same time begin at different ports.
std::vector<std::uint16_t> freePorts(std::size_t count) {
  constexpr std::uint32_t kFirst = 10'000, kEnd = 32'000;
  static std::uint32_t next = static_cast<std::uint32_t>(::getpid()) * 64;
  std::vector<std::uint16_t> ports;
  while (ports.size() < count) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % (kEnd - kFirst));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool isFree = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(socket);
    if (isFree) ports.push_back(port);
  }
  return ports;
}

Ended ask(Arguments arguments) {
  arguments.insert(arguments.begin(), clientProgram());
  return finish(Process::start(arguments));
}

nlohmann::json askJson(Arguments arguments) {
  arguments.emplace_back("--json");
  const Ended ended = ask(arguments);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

Process startSlowClient(const std::string& runFolder, const std::string& server,
                        const Arguments& more, const Arguments& within) {
  return startClient("train", runFolder,
                     with({"--set", "model={name: sleep, of: mlp, F1: 1, B1: 1}", "--set",
                           "train.epochs=1000", "--set", "eval.every=0", "--server", server},
                          more),
                     within);
}

void waitForSteps(const std::string& runFolder) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kPatience) {
    std::error_code none;
    if (std::filesystem::file_size(runFolder + "/steps.csv", none) > 4096 && !none) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("no steps were recorded in " << runFolder);
}

void checkFilesComplete(const std::string& runFolder) {
  CHECK(readCsv(runFolder + "/transfers.csv").size() > 10);
  const auto steps = readCsv(runFolder + "/steps.csv");
  CHECK(steps.size() > 3);
  CHECK(steps.back().at("phase") == "bye");
}

Resources resourcesOf(const Process& process) {
  const std::string folder = "/proc/" + std::to_string(process.pid());
  const auto entries = [&](const char* name) {
    std::error_code gone;
    std::size_t count = 0;
    for (std::filesystem::directory_iterator entry(folder + name, gone), end; !gone && entry != end;
         entry.increment(gone)) {
      ++count;
    }
    return count;
  };
  Resources resources{0, entries("/fd"), entries("/task")};
  std::ifstream status(folder + "/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> resources.residentKiB;
  }
  return resources;
}

std::string readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json summaryOf(const std::string& run) {
  return nlohmann::json::parse(readFile(run + "/summary.json"));
}

std::string readTensors(const std::string& path) {
  const std::string file = readFile(path);
  std::uint64_t header = 0;
  REQUIRE(file.size() >= sizeof header);
  std::memcpy(&header, file.data(), sizeof header);
  REQUIRE(file.size() - sizeof header >= header);
  auto tensors = nlohmann::json::parse(file.substr(sizeof header, header));
  tensors.erase("__metadata__");
  return tensors.dump() + file.substr(sizeof header + header);
}

std::vector<std::string> csvHeader(const std::string& path) {
  const std::string text = readFile(path);
  return splitCsvLine(text.substr(0, text.find('\n')));
}

std::vector<CsvRow> readCsv(const std::string& path) {
  const std::string text = readFile(path);
  INFO(path);
  REQUIRE(!text.empty());
  REQUIRE(text.back() == '\n');  // only whole lines
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> header = splitCsvLine(line);
  std::vector<CsvRow> rows;
  while (std::getline(lines, line)) {
    const std::vector<std::string> cells = splitCsvLine(line);
    INFO(line);
    REQUIRE(cells.size() == header.size());
    CsvRow row;
    for (std::size_t j = 0; j < cells.size(); ++j) row[header[j]] = cells[j];
    rows.push_back(std::move(row));
  }
  return rows;
}

double sumOf(const std::vector<CsvRow>& rows, const std::string& summed, const CsvRow& where) {
  double sum = 0;
  for (const CsvRow& row : rows) {
    bool fits = true;
    for (const auto& [column, value] : where) fits = fits && row.at(column) == value;
    if (fits && !row.at(summed).empty()) sum += std::stod(row.at(summed));
  }
  return sum;
}

void trainThroughKills(RestartableServer& server, const std::vector<std::string>& places,
                       const std::string& run, const Arguments& arguments) {
  server.server().stop();  // writes the rows of earlier runs
  server.start(failingAt(places.front()));
  const Process client = startClient("train", run, arguments);
  for (std::size_t next = 1; next <= places.size(); ++next) {
    REQUIRE(server.server().process().wait(kPatience));
    server.start(next < places.size() ? failingAt(places[next]) : Arguments{});
  }
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
}

void restartWithoutLoss(RestartableServer& server, const Process& client, const std::string& run) {
  server.server().stop();
  server.start();
  const Ended ended = finish(client);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(readFile(run + "/summary.json"));
  CHECK(summary.at("resumes") == 1);
  CHECK(summary.at("steps_redone") == 0);
}

}  // namespace cleave::test
