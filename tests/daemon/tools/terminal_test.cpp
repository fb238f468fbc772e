// The progress output of training on a terminal, through a pipe, and for programs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <sstream>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/daemon/pty.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using std::chrono::steady_clock;
using Variables = std::map<std::string, std::string>;

// A run of two epochs with 64 steps of a few ms each, and an evaluation after each epoch.
Arguments training(const TemporaryFolder& folder, const TestServer& server,
                   const Arguments& more = {}) {
  Arguments arguments = {clientProgram(), "train",
                         "--config",      configFile("synthetic.yaml"),
                         "--run-dir",     folder.path("client"),
                         "--server",      server.address(),
                         "--set",         "model={name: sleep, of: mlp, F1: 1, B1: 1}",
                         "--set",         "codec=block:bits=8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::size_t countOf(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

constexpr const char* kErase = "\r\x1b[K";
const std::string kLogLine =
    R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (trace|debug|info|warning) cleave-client: .*)";

TEST_CASE("on a terminal one line is rewritten, and log lines appear complete above it") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const auto start = steady_clock::now();
  // Log lines are printed by a different thread than the bar.
  const TerminalProcess client(training(folder, server, {"--log-level", "trace"}), 100,
                               {{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  const auto code = client.wait(kPatience);
  const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
  const std::string output = client.output();
  INFO(output);
  REQUIRE(code == 0);
  CHECK_THAT(output, Contains("% [") && Contains(" samples/s") && Contains(" left"));
  CHECK(countOf(output, "\x1b[") == countOf(output, kErase));  // no colours
  // The bar is updated at most ten times per second, plus once after each log line.
  const std::size_t lines = countOf(output, "\n");
  CHECK(countOf(output, kErase) > 3);
  CHECK(countOf(output, kErase) < 10 * seconds + static_cast<double>(lines) + 2);

  std::size_t logLines = 0;
  std::size_t epochLines = 0;
  for (const std::string& row : screenAfter(output, 10'000)) {
    INFO(row);
    CHECK_THAT(row, !Contains("% ["));  // the bar is removed completely
    epochLines += row.starts_with("epoch ") ? 1 : 0;
    if (row.starts_with("20")) {
      CHECK_THAT(row, Matches(kLogLine));
      ++logLines;
    } else {
      CHECK_THAT(row, !Contains("cleave-client: "));
    }
  }
  CHECK(logLines >= 3);
  CHECK(epochLines == 2);
  CHECK(countOf(output, "\naccuracy    ") == 1);
}

TEST_CASE("the bar fits a narrow terminal, also after a resize") {
  const TemporaryFolder folder;
  TestServer server(folder);
  TerminalProcess client(training(folder, server, {"--log-level", "error"}), 90,
                         {{"TERM", "xterm"}, {"NO_COLOR", ""}});
  REQUIRE(client.waitForOutput("% [", kPatience));
  client.resize(44);
  const std::size_t before = client.output().size();
  REQUIRE(client.wait(kPatience) == 0);
  const std::string output = client.output();
  CHECK_THAT(output, Contains("\x1b[1;32mtrain\x1b[0m"));  // `train` in colour
  std::size_t narrow = 0;
  // A bar that was being drawn when the size changed may still have the old width.
  std::size_t at = output.find(kErase, output.find(kErase, before) + 1);
  for (; at != std::string::npos; at = output.find(kErase, at + 1)) {
    const std::size_t begin = at + std::string(kErase).size();
    const std::string shown = output.substr(begin, output.find_first_of("\r\n", begin) - begin);
    if (shown.find("\x1b[1;32m") != 0) continue;
    INFO(shown);
    CHECK(screenAfter(shown, 1000).at(0).size() < 44);
    ++narrow;
  }
  CHECK(narrow > 0);
}

TEST_CASE("at 80 columns no word is split, and the bar shows the epoch") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const TerminalProcess client(training(folder, server), 80,
                               {{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  REQUIRE(client.wait(kPatience) == 0);
  const std::string output = client.output();
  INFO(output);
  CHECK_THAT(output, Matches("(.|[\r\n])*% \\[[^\r\n]*epoch 1/2[^\r\n]* left(.|[\r\n])*"));
  for (const std::string& row : screenAfter(output, 10'000)) {
    INFO(row);
    const bool isOneWord = row.find(' ', row.find_first_not_of(' ')) == std::string::npos;
    CHECK((row.size() <= 80 || isOneWord));
  }
}

TEST_CASE("a dumb terminal and a pipe get plain lines") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const TerminalProcess dumb(training(folder, server), 80, {{"TERM", "dumb"}});
  REQUIRE(dumb.wait(kPatience) == 0);
  CHECK_THAT(dumb.output(), !Contains("\x1b") && Contains("epoch 2/2 done: "));
  CHECK(countOf(dumb.output(), "\r") == countOf(dumb.output(), "\r\n"));

  const Ended piped = runClient("train", folder.path("piped"), {"--server", server.address()});
  REQUIRE(piped.code == 0);
  for (const std::string& text : {piped.output, piped.errors}) {
    CHECK_THAT(text, !Contains("\x1b") && !Contains("\r"));
  }
  CHECK_THAT(piped.output, Contains(" done: train loss ") && Contains("\naccuracy    "));
}

TEST_CASE("--quiet prints only warnings, errors and the summary") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Ended ended =
      runClient("train", folder.path("client"), {"--server", server.address(), "--quiet"});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, !Contains(" info "));
  CHECK_THAT(ended.output, Contains("accuracy    ") && !Contains("done: "));
  CHECK_THAT(readFile(folder.path("client/log.txt")), Contains(" info "));
  checkError(runClient("train", folder.path("second"),
                       {"--server", "127.0.0.1:1", "--quiet", "--set", "connect.retry_seconds=0"}),
             kFailedRun, {"[no-server]", "cannot connect to 127.0.0.1:1"});
  checkError(runClient("train", folder.path("third"), {"--quiet", "--log-level", "info"}),
             kWrongUse, {"--log-level excludes --quiet"});
}

std::vector<nlohmann::json> parsedLines(const std::string& text) {
  CHECK((text.empty() || text.back() == '\n'));
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST_CASE("--json-lines prints events, one object per line") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--server", server.address(), "--json-lines", "--set", "train.epochs=2"});
  REQUIRE(ended.code == 0);
  const auto lines = parsedLines(ended.output);
  REQUIRE(lines.size() > 4);
  CHECK(lines.front().at("event") == "begin");
  CHECK(lines.front().at("server") == server.address());
  CHECK(lines.back().at("event") == "done");
  CHECK(lines.back().at("steps") == lines.front().at("steps"));
  CHECK(lines.back().contains("images_per_second"));

  const auto rows = readCsv(folder.path("client/steps.csv"));
  std::vector<CsvRow> recorded;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(recorded),
               [](const CsvRow& row) { return row.at("phase") == "train"; });
  std::size_t steps = 0;
  std::size_t epochs = 0;
  for (const auto& line : lines) {
    CHECK_THAT(line.at("time").get<std::string>(), Matches(R"(20\d\d-.*\.\d{3}Z)"));
    if (line.at("event") == "epoch") {
      CHECK(line.at("epoch") == ++epochs);
      for (const char* key : {"train_seconds", "train_loss", "eval_top1", "images_per_second"}) {
        CHECK(line.at(key).get<double>() >= 0);
      }
    }
    if (line.at("event") != "step") continue;
    REQUIRE(steps < recorded.size());
    const CsvRow& row = recorded[steps++];
    CHECK(line.at("step") == steps);
    CHECK(line.at("samples") == std::stoi(row.at("samples")));
    CHECK(line.at("loss").get<double>() == Approx(std::stod(row.at("loss"))));
    CHECK(line.at("seconds").get<double>() == Approx(std::stod(row.at("seconds"))));
    CHECK(line.at("total_up_bytes").get<double>() > 0);
  }
  CHECK(steps == recorded.size());
  CHECK(epochs == 2);
}

TEST_CASE("--json-lines ends with the reason of a failed run") {
  const TemporaryFolder folder;
  const Ended ended =
      runClient("train", folder.path("client"),
                {"--server", "127.0.0.1:1", "--json-lines", "--set", "connect.retry_seconds=0"});
  checkError(ended, kFailedRun, {"[no-server]", "cannot connect to 127.0.0.1:1"});
  const auto lines = parsedLines(ended.output);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("event") == "failed");
  CHECK(lines[0].at("code") == "no-server");
  CHECK(lines[0].at("key") == "--server");
  CHECK(lines[0].at("resume") == "");
  CHECK(lines[0].at("exit_code") == kFailedRun);
  CHECK_THAT(lines[0].at("sentence").get<std::string>(), Contains("cannot connect"));
  CHECK_THAT(lines[0].at("hint").get<std::string>(), Contains("cleave-server serve"));
}

}  // namespace
}  // namespace cleave::test
