#include "client/sweep/point_run.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "client/report/report.h"
#include "client/run/child.h"
#include "client/run/local_server.h"
#include "common/checkpoint/commits.h"
#include "common/core/clock.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/open_file.h"
#include "common/program/program.h"
#include "common/run/run_folder.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t interruptCount = 0;
void countInterrupt(int) { interruptCount = interruptCount + 1; }

// Returns the whole content of a file.
std::string textOf(const OpenFile& file) {
  std::string text;
  char bytes[4096];
  off_t offset = 0;
  for (ssize_t got; (got = ::pread(file.get(), bytes, sizeof bytes, offset)) > 0; offset += got) {
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<std::string> linkCommand(const PlannedPoint& planned, const std::string& target) {
  std::vector<std::string> argv = {programBeside("cleave-link"), "--log-level", "warn", "--target",
                                   target};
  for (const std::string& setting : planned.link) argv.insert(argv.end(), {"--set", setting});
  return argv;
}

// `server`: empty if `train` starts a local server. `resumes`: whether to continue the run in the
// folder.
std::vector<std::string> trainCommandLine(const RunOptions& options, const PlannedPoint& planned,
                                          const std::string& runFolder, const std::string& server,
                                          bool resumes) {
  std::vector<std::string> argv = {programBeside("cleave-client"), "train", "--json-lines",
                                   "--log-level", options.common.logLevel};
  if (!server.empty()) argv.insert(argv.end(), {"--server", server});
  if (!planned.server.empty() && !options.tls.empty()) {
    argv.insert(argv.end(), {"--tls", options.tls});
  }
  if (resumes) {
    argv.insert(argv.end(), {"--resume", runFolder});
    return argv;
  }
  argv.insert(argv.end(), {"--config", options.common.config, "--run-dir", runFolder});
  const auto set = [&](const std::string& override) {
    argv.insert(argv.end(), {"--set", override});
  };
  for (const std::string& override : options.common.overrides) set(override);
  for (const std::string& override : planned.point.configOverrides()) set(override);
  if (planned.server.empty()) set("tls.enabled=false");  // a local server listens on loopback
  return argv;
}

struct TrainingEnd {
  int code = 0;
  bool interrupted = false;
  std::string output;
};

TrainingEnd waitFor(Child& training, const Interrupts& interrupts) {
  constexpr std::chrono::milliseconds kPause{20};
  while (!training.ended() && interrupts.count() == 0) std::this_thread::sleep_for(kPause);
  if (const auto code = training.ended()) return {*code, interrupts.count() > 0, ""};
  training.signal(SIGINT);
  while (!training.ended() && interrupts.count() == 1) std::this_thread::sleep_for(kPause);
  return {training.end(SIGKILL), true, ""};
}

// Starts all processes of one point and waits for the training run.
TrainingEnd train(const RunOptions& options, const PlannedPoint& planned,
                  const std::string& runFolder, bool resumes, int log,
                  const Interrupts& interrupts) {
  std::optional<LocalServer> server;
  std::optional<ListeningChild> link;
  std::string address = planned.server;
  if (!planned.link.empty()) {
    if (address.empty()) {
      server.emplace(runFolder + ".server", planned.device, overridesFor(planned.model), log);
      address = server->address().text();
    }
    link.emplace(linkCommand(planned, address), log);
    address = link->address().text();
  }
  const OpenFile output(::memfd_create("cleave-sweep", MFD_CLOEXEC));
  if (!output) throwCannotWrite("a file in memory", "cannot be created", errno);
  Child training(trainCommandLine(options, planned, runFolder, address, resumes),
                 {output.get(), log});
  TrainingEnd end = waitFor(training, interrupts);
  end.output = textOf(output);
  return end;
}

// `train` can only suggest to continue its run, but the sweep may also start its point again.
// `skip`: the point's data.skip.
std::string skipHint(std::uint32_t skip, const std::string& config) {
  return fmt::format(
      "replace or remove the damaged samples, or add --set data.skip={}, which uses other samples "
      "in their place; then rerun the same command (to list all: cleave-client data check --config "
      "{})",
      skip + 1, shellWord(config));
}

// `event`: the last event that the training run reported. Its hint does not contain the command
// that continues the run, because the sweep continues its points itself.
std::string failureText(const TrainingEnd& end, const Json& event, const std::string& logPath,
                        const RunOptions& options, const PlannedPoint& planned) {
  if (event.value("event", "") == "failed") {
    std::string hint = event.value("hint", "");
    if (event.value("key", "") == "data.skip") hint = skipHint(planned.skip, options.common.config);
    return event.value("sentence", "") + (hint.empty() ? "" : "; hint: " + hint);
  }
  constexpr int kSignalled = 128;
  return end.code > kSignalled
             ? fmt::format("the training run was killed by signal {}", end.code - kSignalled)
             : fmt::format("the training run ended with exit code {}; its log: {}", end.code,
                           logPath);
}

// Returns the last event of `cleave-client train --json-lines`, or an empty object if there is no
// event.
Json lastEvent(const std::string& lines) {
  const std::size_t end = lines.find_last_not_of('\n');
  if (end == std::string::npos) return Json::object();
  const std::size_t before = lines.rfind('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  Json event = Json::parse(lines.substr(begin, end + 1 - begin), nullptr, false);
  return event.is_object() ? event : Json::object();
}

// Whether the run in the folder has a checkpoint from which it can be continued.
bool hasCheckpoint(const std::string& runFolder) {
  namespace fs = std::filesystem;
  std::error_code missing;
  if (!fs::exists(runFolder + "/run.json", missing)) return false;
  try {
    return !readCommits(diskFiles(), runFolder).empty();
  } catch (const Error&) {  // the list of checkpoints is damaged
    return false;
  }
}

// Waits for the client of an earlier, killed sweep: it may still be writing its last checkpoint.
void waitForEarlierClient(const std::string& runFolder) {
  constexpr double kPatience = 10;  // seconds; a client exits sooner after SIGTERM
  constexpr std::chrono::milliseconds kPause{50};
  std::error_code missing;
  if (!std::filesystem::exists(runFolder + "/lock", missing)) return;
  for (const SteadyTime start = now(); secondsSince(start) < kPatience;) {
    if (tryLockRunFolder(runFolder)) return;
    std::this_thread::sleep_for(kPause);
  }
}

// Whether the last event means that the run in the folder can never be continued. After all other
// failures, such as an unreachable server, the run can be continued.
bool cannotResume(const Json& event) {
  return event.value("event", "") == "failed" && event.value("key", "") == "--resume";
}

void removeOld(const std::string& runFolder) {
  for (const char* suffix : {"", ".server", ".log"}) {
    std::error_code error;
    std::filesystem::remove_all(runFolder + suffix, error);
    if (error) throwCannotWrite(runFolder + suffix, "cannot be removed", error.value());
  }
}

}  // namespace

Interrupts::Interrupts() {
  interruptCount = 0;
  struct sigaction action {};
  action.sa_handler = countInterrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

Interrupts::~Interrupts() {
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
}

int Interrupts::count() const { return interruptCount; }

PointEnd runPoint(const RunOptions& options, const PlannedPoint& planned, const std::string& folder,
                  const Interrupts& interrupts) {
  const std::string runFolder = folder + "/" + planned.point.name();
  waitForEarlierClient(runFolder);
  const bool resumes = isBegun(folder, planned) && hasCheckpoint(runFolder);
  if (!resumes) {
    removeOld(runFolder);
    storePlan(folder, planned);
  }
  const std::string logPath = runFolder + ".log";
  const OpenFile log(::open(logPath.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!log) throwCannotWrite(logPath, "cannot be created", errno);

  PointEnd end;
  PointResult& result = end.stored.result;
  result.point = planned.point;
  result.facts = planned.facts;
  const SteadyTime start = now();
  const auto fail = [&](const std::string& sentence) {
    result.status = PointResult::Status::failed;
    result.failure = sentence;
    return end;
  };
  TrainingEnd training;
  try {
    training = train(options, planned, runFolder, resumes, log.get(), interrupts);
  } catch (const Error& error) {
    return fail(error.what() + std::string("; its log: ") + logPath);
  }
  end.interrupted = training.interrupted;
  const Json summary = lastEvent(training.output);
  if (resumes && !training.interrupted && cannotResume(summary)) {
    processLog()->warn("{} starts over: {}", planned.point.name(),
                       failureText(training, summary, logPath, options, planned));
    removePlan(folder, planned);
    return runPoint(options, planned, folder, interrupts);
  }
  if (training.code != 0) return fail(failureText(training, summary, logPath, options, planned));
  if (summary.value("event", "") != "done") return fail("the training run reported no result");
  // This includes the seconds of earlier processes of the run.
  end.stored.seconds = std::max(secondsSince(start), summary.value("seconds", 0.0));
  std::error_code none;  // the server's folder does not exist if `train` started a local server
  std::filesystem::rename(runFolder + ".server", runFolder + "/server", none);
  result.measured = measureRun(summary, runFolder);
  result.status = PointResult::Status::done;
  writeReport({findRun(runFolder, {})}, runFolder + "/report.html");
  storePoint(folder, planned, end.stored);
  std::filesystem::remove(logPath, none);
  removePlan(folder, planned);
  return end;
}

}  // namespace cleave
