// cleave-client doctor: checks whether everything that a training run needs is in place.

#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include <iostream>

#include "client/commands/commands.h"
#include "client/diagnose/doctor.h"
#include "client/run/connect.h"
#include "common/core/log.h"
#include "common/core/units.h"

namespace cleave {
namespace {

struct DoctorOptions {
  RunOptions run;
  double seconds = 3;  // approximate duration of the link measurement
};

void print(const Check& check) {
  std::cout << fmt::format("{:<4}  {:<12}  {}\n", findingName(check.finding), check.name,
                           check.sentence);
  if (!check.hint.empty()) std::cout << fmt::format("{:20}hint: {}\n", "", check.hint);
  std::cout << std::flush;
}

nlohmann::ordered_json jsonOf(const Check& check) {
  return {{"check", check.name},
          {"finding", check.finding == Finding::skipped ? "skipped" : findingName(check.finding)},
          {"sentence", check.sentence},
          {"hint", check.hint},
          {"figures", check.figures}};
}

int doctorCommand(const DoctorOptions& options) {
  startLog("cleave-client", options.run.common.logLevel);
  parseAddresses(options.run.server);  // throws on an invalid address before any check runs
  std::uint64_t warnings = 0;
  std::uint64_t failures = 0;
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  const Findings found = [&](const Check& check) {
    warnings += check.finding == Finding::warn ? 1 : 0;
    failures += check.finding == Finding::fail ? 1 : 0;
    if (options.run.json) {
      checks.push_back(jsonOf(check));
    } else {
      print(check);
    }
  };
  std::optional<PreparedRun> run = examineMachine(options.run, found);
  examineServers(options.run, run, options.seconds, found);
  if (options.run.json) {
    const nlohmann::ordered_json report = {
        {"failures", failures}, {"warnings", warnings}, {"checks", checks}};
    std::cout << report.dump(2) << std::endl;
  } else {
    std::cout << fmt::format("\n{}, {}\n", countText(failures, "failure"),
                             countText(warnings, "warning"))
              << std::flush;
  }
  return failures > 0 ? 1 : 0;
}

}  // namespace

void addDoctorCommand(CLI::App& app, std::function<int()>& command) {
  static DoctorOptions options;
  CLI::App* doctor = app.add_subcommand(
      "doctor",
      "Checks what a training run needs: LibTorch, threads, memory, disk, configuration and data, "
      "certificates, the servers, the links, and whether the servers would admit the run");
  options.run.common.logLevel = "warn";  // those about the data
  addRunOptions(*doctor, options.run);
  doctor->get_option("--config")->required(false);
  doctor->get_option("--server")
      ->description(
          "The server to check, or several, separated by commas; also measures the links to them");
  doctor->add_option("--seconds", options.seconds, "Approximate duration of the link measurement")
      ->default_str("3")
      ->check(CLI::Range(0.1, 300.0));
  doctor->footer(
      "Example:\n  cleave-client doctor --server 10.0.0.5:4800 --tls certs --config "
      "configs/fashion_mnist.yaml\n\n"
      "Each line starts with 'ok', 'warn', 'FAIL' or '-' (not checked); a hint follows if there is "
      "one.\n\n"
      "Exit codes: 0 no failures, 1 failures, 2 usage error.");
  doctor->callback([&] { command = [&] { return doctorCommand(options); }; });
}

}  // namespace cleave
