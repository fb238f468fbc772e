#include "client/diagnose/doctor.h"

#include <spdlog/fmt/fmt.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "client/planning/exposure.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/resources/available_memory.h"
#include "common/run/device.h"
#include "common/run/run_folder.h"
#include "common/run/self_check.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Bytes; enough for the records of several hundred thousand steps.
constexpr double kLittleDisk = 1e9;
constexpr double kNoDisk = 10e6;
constexpr double kLittleMemory = 1e9;

// ---- The experiment ----

// The parts of the experiment that could be read.
struct ExaminedRun {
  std::optional<ClientSettings> settings;
  std::optional<PreparedRun> run;
};

Check checkConfig(const RunOptions& options, ExaminedRun& experiment) {
  if (options.common.config.empty()) {
    return {"config", Finding::skipped, "not given; add --config FILE to check it and its data",
            ""};
  }
  Config config = loadConfig(options.common);
  experiment.settings = readClientSettings(config);
  return {"config", Finding::ok, options.common.config + " is valid", ""};
}

Check describeData(const Datasets& data, const std::string& config) {
  return {"data",
          Finding::ok,
          fmt::format("{} training and {} test samples; most of them were not read: cleave-client "
                      "data check --config {} reads all",
                      data.train->size(), data.test->size(), config),
          "",
          {{"train_samples", data.train->size()}, {"test_samples", data.test->size()}}};
}

// If resolveRun() fails, opens the data separately to find out whether the data is the cause.
void examineRun(const RunOptions& options, ExaminedRun& experiment, const Findings& found) {
  const Check run = checked("run", [&]() -> Check {
    experiment.run = resolveRun(options, Purpose::training);
    return {"run", Finding::ok,
            fmt::format("{} in {} steps", experiment.settings->model.name,
                        totalSteps(*experiment.settings, experiment.run->trainSamples())),
            ""};
  });
  const Check data = checked("data", [&] {
    return describeData(
        experiment.run ? experiment.run->data : openDatasets(experiment.settings->data),
        options.common.config);
  });
  found(data);
  if (data.finding == Finding::ok) found(run);
  // Nothing that can be wrong, but that should be known.
  if (experiment.run) found({"privacy", Finding::skipped, exposureText(*experiment.run), ""});
}

Check checkDevice(const ClientSettings& settings) {
  return {"device", Finding::ok, openDevice(settings.device).description(), ""};
}

void examineExperiment(const RunOptions& options, ExaminedRun& experiment, const Findings& found) {
  const Check config = checked("config", [&] { return checkConfig(options, experiment); });
  found(config);
  if (!experiment.settings) {
    found({"data", Finding::skipped, "requires a valid configuration", ""});
    return;
  }
  examineRun(options, experiment, found);
  found(checked("device", [&] { return checkDevice(*experiment.settings); }));
}

// ---- The machine ----

Check checkLibTorch(int threads) {
  const SelfCheck measured = measureMachine(threads);
  const auto flags = describeEnvironment(threads).at("cpu").at("flags");
  Check check{"libtorch",
              Finding::ok,
              fmt::format("{} with {}: {:.0f} GFLOP/s fp32, {:.1f} GB/s copied (threads: {})",
                          libtorchVersion(), measured.instructionSet, measured.gigaflops,
                          measured.copyGigabytes, measured.threads),
              "",
              {{"version", libtorchVersion()},
               {"instruction_set", measured.instructionSet},
               {"sgemm_gigaflops_per_second", measured.gigaflops},
               {"copy_gigabytes_per_second", measured.copyGigabytes}}};
  for (const std::string& advice : slownessAdvice(measured, flags)) {
    check.finding = Finding::warn;
    check.hint += (check.hint.empty() ? "" : "; ") + advice;
  }
  return check;
}

Check checkThreads(const ThreadCount& count, int asked) {
  Check check{"threads",
              Finding::ok,
              count.text,
              "",
              {{"cores", usableCores()}, {"threads", count.threads}}};
  if (asked > usableCores()) {
    check.finding = Finding::warn;
    check.hint = fmt::format(
        "lower threads.client from {} to at most {}, the cores that this process may use", asked,
        usableCores());
  }
  return check;
}

Check checkMemory(const ExaminedRun& experiment) {
  const auto total = static_cast<double>(machineMemory());
  const auto available = static_cast<double>(availableMemory());
  const double needed =
      experiment.run ? static_cast<double>(clientBytes(experiment.run->plan, experiment.run->bodies,
                                                       *experiment.run->data.train))
                     : 0;
  Check check{"memory",
              Finding::ok,
              fmt::format("{} available of {}", bytesText(available), bytesText(total)),
              "",
              {{"total_bytes", total}, {"available_bytes", available}}};
  if (experiment.run) {
    check.sentence += fmt::format("; the run needs about {} here", bytesText(needed));
    check.figures["needed_bytes"] = needed;
  }
  if (needed > available || available < kLittleMemory) {
    check.finding = needed > total ? Finding::fail : Finding::warn;
    check.hint = experiment.run
                     ? "stop other programs, or use a smaller batch or a lower train.in_flight"
                     : "stop other programs";
  }
  return check;
}

// Returns the folder itself if it exists, otherwise its nearest existing parent.
fs::path existingPart(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder, ignored);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

Check checkDisk(const RunOptions& options) {
  const fs::path folder = options.runDir.empty() ? "runs" : options.runDir;
  const fs::path existing = existingPart(folder);
  struct statvfs space {};
  if (::access(existing.c_str(), W_OK | X_OK) != 0 || ::statvfs(existing.c_str(), &space) != 0) {
    return {"disk", Finding::fail,
            fmt::format("cannot record a run in {}: {}: {}", folder.string(), existing.string(),
                        std::strerror(errno)),
            "make it writable, or give another folder with --run-dir"};
  }
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  Check check{
      "disk",
      Finding::ok,
      fmt::format("{} free in {} for the files of runs", bytesText(free), existing.string()),
      "",
      {{"folder", existing.string()}, {"free_bytes", free}}};
  if (free < kLittleDisk) {
    check.finding = free < kNoDisk ? Finding::fail : Finding::warn;
    check.hint = "free disk space, or give another folder with --run-dir";
  }
  return check;
}

}  // namespace

std::string_view findingName(Finding finding) {
  constexpr std::string_view kNames[] = {"ok", "warn", "FAIL", "-"};
  return kNames[static_cast<std::size_t>(finding)];
}

Check failedCheck(const std::string& name, const Error& error) {
  return {name, Finding::fail, error.what(), error.hint(), {{"code", error.code()}}};
}

Check checked(const std::string& name, const std::function<Check()>& check) {
  try {
    return check();
  } catch (const Error& error) {
    return failedCheck(name, error);
  } catch (const std::exception& error) {
    return {name, Finding::fail, error.what(), ""};
  }
}

std::optional<PreparedRun> examineMachine(const RunOptions& options, const Findings& found) {
  ExaminedRun experiment;
  examineExperiment(options, experiment, found);
  const int asked = experiment.settings ? experiment.settings->clientThreads : 0;
  const ThreadCount count = clientThreads(options, asked);
  found(checked("libtorch", [&] { return checkLibTorch(count.threads); }));
  found(checkThreads(count, asked));
  found(checkMemory(experiment));
  found(checkDisk(options));
  return std::move(experiment.run);
}

}  // namespace cleave
