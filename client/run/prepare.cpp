#include "client/run/prepare.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cassert>
#include <ctime>
#include <filesystem>
#include <limits>
#include <random>

#include "client/data/samples/subset.h"
#include "client/run/earlier_run.h"
#include "client/run/prepare_parts.h"
#include "common/core/log.h"
#include "common/device/torch_errors.h"
#include "common/files/environment.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/run_folder.h"
#include "common/run/self_check.h"

namespace cleave {
namespace {

// Prefixes of run names, by Purpose.
constexpr const char* kPrefixes[] = {"", "measure-", "verify-", "infer-"};

// Returns NAME-YYYYMMDD-hhmmss-xxxxxx. Ids sort by time, and the random suffix distinguishes runs
// that start in the same second. The id is also a folder name; it must not begin with a dash,
// because commands would parse it as an option.
std::string makeRunId(const std::string& name) {
  constexpr std::size_t kMaxOfName = 40;
  std::string id;
  for (const char c : name.substr(0, kMaxOfName)) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    id += fits ? c : (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : '-';
  }
  id.erase(0, std::min(id.find_first_not_of('-'), id.size()));
  if (id.empty()) id = "run";
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
  return fmt::format("{}-{}-{:06x}", id, stamp, std::random_device{}() & 0xffffff);
}

// The trace omits the first step, which is a warm-up, unless it is the only one.
void requestTrace(RunSpec& spec, std::uint64_t steps, std::uint64_t totalSteps) {
  const std::uint64_t first = totalSteps > 1 ? 2 : 1;
  spec.trace = {first, std::min(steps, totalSteps - first + 1)};
}

// ---- resolveRun ----

// The configuration with the overrides that the purpose and the options imply.
Config configOf(const RunOptions& options, Purpose purpose) {
  CommonOptions common = options.common;
  const std::string stored =
      options.resume.empty() ? common.configText : diskFiles().read(common.config).value_or("");
  const std::vector<std::string> implied = impliedOverrides(stored);
  common.overrides.insert(common.overrides.begin(), implied.begin(), implied.end());
  if (purpose == Purpose::verification) common.overrides.emplace_back("codec=none");
  if (purpose == Purpose::inference) {
    common.overrides.insert(common.overrides.begin(), "codec=none");
  }
  if (!options.tls.empty()) {
    common.overrides.insert(common.overrides.end(),
                            {"tls.enabled=true", "tls.folder=" + quotedYaml(options.tls)});
  }
  return loadConfig(common);
}

// A server that the client starts itself is on loopback, where a lossy codec would cost accuracy
// and save no time: the codec `auto` is then the least lossy one, unless a budget limits it.
void useLosslessOnLoopback(PreparedRun& run) {
  if (!run.servers.empty() || run.settings.autoBudget.isLimited()) return;
  for (auto& [flow, choices] : run.settings.autoCodecs) {
    choices.resize(1);
    run.settings.codecs[flow] = choices.front();
  }
}

// Opens the data, reads a user's model and makes the plan.
void planRunOf(PreparedRun& run, const Config& config, const RunOptions& options, Purpose purpose,
               const DataOpener& open) {
  const bool isResumed = !options.resume.empty();
  // Without a server, there is nothing to defend.
  if (purpose == Purpose::inference && run.servers.empty()) run.settings.defences.clear();
  run.data = isResumed ? openAgain(run.settings.data, open) : open(run.settings.data);
  if (purpose == Purpose::training) {
    run.trainDigest = digestOf(*run.data.train);
    run.evaluationDigest = digestOf(*run.data.test);
  }
  if (isResumed) {
    checkSameData(run, options.resume);
    warnOfBits(run);
  }
  if (purpose != Purpose::inference) warnOfLargeBatch(run);
  if (!run.settings.modelFile.empty()) {
    checkAt(config, "model.file", [&] {
      run.userModel =
          withTorchErrors([&] { return std::make_shared<const UserModel>(run.settings); });
      run.data = run.userModel->inputsFrom(run.data);
    });
    warnOfEvaluation(run);
  }
  if (purpose != Purpose::inference) checkReplicaBatches(run.settings, run.data);
  RunSpec spec = makeRunSpec(run.settings, run.data, run.userModel.get());
  if (options.traceSteps > 0 && run.settings.cohort.isRelay()) {
    throw UsageError("bad-cohort", "the steps of a trace may be those of another member's turn",
                     "omit --trace, or trace a run without a cohort")
        .about("cohort.mode");
  }
  if (options.traceSteps > 0) {
    // How many steps a cohort's run has is known when all members are connected.
    requestTrace(spec, options.traceSteps,
                 run.settings.cohort.exists() ? std::numeric_limits<std::uint64_t>::max()
                                              : totalSteps(run.settings, run.trainSamples()));
  }
  planFor(run, spec);
  giveDefencesTheirKey(run, config, purpose);
  if (run.settings.cohort.exists()) {
    checkCohortUse(run);
    run.agreed = agreedValues(config, run);
  }
  if (purpose == Purpose::training) {
    warnOfInputs(run);
    warnOfTarget(run);
    for (std::string& warning : missingClassWarnings(*run.data.train, *run.data.test)) {
      run.warnings.push_back(std::move(warning));
    }
  }
  dropUnusedFlows(run);
  checkTarget(run);
  if (purpose == Purpose::training) checkDetection(run);
  checkDefences(run);
  if (purpose != Purpose::inference) {
    checkBatchNorm(run.plan.blocks, minMicroBatch(run.settings, *run.data.train));
    warnOfSmallNorms(run);
  }
  WeightsReport report;
  checkAt(config, "weights.file", [&] { initialWeights(run, &report); });  // only checks them
  if (purpose == Purpose::training && !run.settings.weights.file.empty()) {
    processLog()->info("weights {}: {}", run.settings.weights.file, toString(report));
  }
}

wire::Hello helloOf(const PreparedRun& run, Purpose purpose) {
  wire::Hello hello;
  hello.set_run_id(
      makeRunId(std::string(kPrefixes[static_cast<std::size_t>(purpose)]) + run.settings.name));
  hello.set_threads(static_cast<std::uint32_t>(run.threads));
  hello.set_software(softwareVersion());
  return hello;
}

}  // namespace

PreparedRun resolveRun(const RunOptions& options, Purpose purpose, const DataOpener& open) {
  PreparedRun run;
  std::vector<BodyServers> servers = parseAddresses(options.server);  // its errors come first
  Config config = configOf(options, purpose);
  run.settings = readClientSettings(config);
  if (!options.resume.empty()) run.changes = changesOfEarlierRun(options, config, run.settings);
  chooseServers(run, std::move(servers), purpose);
  if (purpose == Purpose::training) useLosslessOnLoopback(run);
  chooseThreadsOf(run, purpose);
  checkAt(config, "", [&] { planRunOf(run, config, options, purpose, open); });
  run.hello = helloOf(run, purpose);
  return run;
}

// Several bodies may be on the same server.
std::string runIdOf(const PreparedRun& run, std::size_t body) {
  return body == 0 ? run.hello.run_id() : fmt::format("{}-{}", run.hello.run_id(), body + 1);
}

wire::Hello helloFor(const PreparedRun& run, std::size_t body) {
  wire::Hello hello = run.hello;
  toWire(run.bodies[body].spec, *hello.mutable_run_spec());
  hello.set_run_id(runIdOf(run, body));
  return hello;
}

std::vector<std::string> impliedOverrides(const std::string& storedConfig) {
  if (storedConfig.empty()) return {};
  Config config = Config::parse(storedConfig, "config.yaml", {});
  if (config.has("data.holdout_from") || !config.has("data.format")) return {};
  if (!config.has("data.holdout") || config.integer("data.holdout", 0, INT64_MAX) == 0) return {};
  if (findDataFormat(config.text("data.format")).shuffles) return {};
  return {"data.holdout_from=end"};
}

Config parseStoredConfig(const std::string& storedConfig, const std::string& path) {
  return Config::parse(storedConfig, path, impliedOverrides(storedConfig));
}

std::vector<NamedTensor> initialWeights(const PreparedRun& run, WeightsReport* report) {
  std::vector<NamedTensor> weights;
  if (run.userModel) weights = run.userModel->readWeights();
  if (run.settings.weights.file.empty()) return weights;
  const auto aliases =
      run.userModel ? run.userModel->aliases() : std::map<std::string, std::string>();
  for (NamedTensor& tensor :
       readWeightsFile(run.settings.weights, run.plan.blocks, aliases, report)) {
    std::erase_if(weights, [&](const NamedTensor& other) { return other.name == tensor.name; });
    weights.push_back(std::move(tensor));
  }
  return weights;
}

namespace {

void refuseWrongUse(const RunOptions& options) {
  if (options.common.config.empty() && options.resume.empty()) {
    throw UsageError(
        "wrong-use", "neither --config nor --resume is given",
        "add --config FILE, or --resume RUN; 'cleave-client train --help' shows examples");
  }
}

void refuseTlsAlone(const RunOptions& options, const PreparedRun& run) {
  if (!run.servers.empty() || options.tls.empty() || !options.resume.empty()) return;
  throw UsageError("wrong-use", "--tls is given without a server's address",
                   "add --server HOST:PORT; a server that the client starts for itself listens on "
                   "loopback, without TLS");
}

void makeFolder(PreparedRun& run, const RunOptions& options) {
  run.folder = options.runDir.empty() ? "runs/" + run.hello.run_id() : options.runDir;
  makeRunFolder(run.folder, "choose another folder with --run-dir, or remove this one",
                "choose another folder with --run-dir");
  run.lock = lockRunFolder(run.folder);
}

// A new run's addresses and certificates are recorded in its folder.
std::string resumeCommandOf(const std::string& folder, const RunOptions& given) {
  std::string command = "cleave-client train --resume " + shellWord(folder);
  if (given.resume.empty()) return command;
  if (!given.server.empty()) command += " --server " + shellWord(given.server);
  if (!given.tls.empty()) command += " --tls " + shellWord(given.tls);
  return command;
}

}  // namespace

PreparedRun prepareRun(const RunOptions& given, Purpose purpose, const DataOpener& open) {
  refuseWrongUse(given);
  const RunOptions options = given.resume.empty() ? given : ofEarlierRun(given);
  PreparedRun run = resolveRun(options, purpose, open);
  refuseTlsAlone(given, run);
  run.allowInexact = options.allowInexact;
  run.device = &openDevice(run.settings.device);
  placeCodecs(run);
  const std::string givenServers = addressesText(run);
  // The certificates are loaded before any folder or process is created, so that an error in them
  // leaves nothing behind.
  if (!run.servers.empty()) {
    const auto tls = openTls(run.settings.tls, TlsRole::client);
    for (ServerAddress& server : run.servers) server.tls = tls;
  }
  options.resume.empty() ? makeFolder(run, options) : openEarlierRun(run, options);
  run.resumeCommand = resumeCommandOf(run.folder, given);
  // Must run before a local server starts: the server also measures the machine, and the two
  // measurements would disturb each other.
  checkMachine(run.threads);
  if (!run.isResumed) {
    writeRunDescription(run.folder, run.settings.resolved, run.threads, run.device->description());
    writeRecord(run, givenServers);
  }
  if (run.servers.empty()) startLocalServers(run);
  return run;
}

// Also removes the files of a probe. Removes the folder only if it is then empty.
void removeUnbegun(const PreparedRun& run) {
  // Local servers store their data in the same folder.
  if (!run.localServers.empty() || run.isResumed) return;
  // If a removal fails, or the process is killed, makeRunFolder() must accept what remains: without
  // run.json, and with the lock, the folder counts as unused.
  std::error_code error;
  const auto remove = [&](std::string_view name) {
    if (!error) std::filesystem::remove(std::filesystem::path(run.folder) / name, error);
  };
  remove("run.json");
  for (const std::string_view name : kFilesBeforeStart) remove(name);
  remove("lock");
  if (!error) std::filesystem::remove(run.folder, error);
}

std::uint64_t PreparedRun::lastStepOf(std::uint64_t epoch) const {
  return plan.joint ? plan.joint->lastStepOf(epoch)
                    : epoch * stepsPerEpoch(settings, trainSamples());
}

std::uint64_t PreparedRun::epochOf(std::uint64_t step) const {
  return plan.joint ? plan.joint->epochOf(step)
                    : (step - 1) / stepsPerEpoch(settings, trainSamples()) + 1;
}

std::uint64_t PreparedRun::turn() const {
  assert(settings.cohort.isRelay());
  return turnsOf(plan.joint->roster()).back();
}

std::uint64_t PreparedRun::totalSteps() const {
  if (plan.joint && settings.cohort.isRelay()) {
    const std::uint64_t first = plan.joint->roster().attendance.back().firstStep;
    const std::uint64_t epochs = turnLengthOf(settings).epochsOf(turn(), settings.cohort.size());
    return epochs == 0 ? first - 1 : lastStepOf(epochOf(first) + epochs - 1);
  }
  const std::uint64_t all = lastStepOf(settings.epochs);
  return settings.maxSteps == 0 ? all : std::min(all, settings.maxSteps);
}

void usePass(JointPlan::Pass pass, Loader::Options& options) {
  options.order = std::move(pass.order);
  options.sizes = std::move(pass.sizes);
}

Loader::Options trainingOptions(const ClientSettings& settings, const Datasets& data,
                                std::uint64_t epoch) {
  const std::uint32_t size = data.train->size();
  Loader::Options options;
  options.batch = settings.batch;
  options.order = data.balanced ? drawBalanced(*data.balanced, size, settings.seed, epoch)
                                : shuffledOrder(size, settings.seed, epoch);
  options.epoch = epoch;
  options.threads = settings.data.threads;
  return options;
}

namespace {

// The member of a cohort whose samples the client has; nullopt: all.
std::optional<std::uint32_t> memberNumber(const RunPlan& plan) {
  if (!plan.member) return std::nullopt;
  return plan.joint->present().at(*plan.member);
}

}  // namespace

Loader::Options trainingOptions(const PreparedRun& run, std::uint64_t epoch) {
  Loader::Options options = trainingOptions(run.settings, run.data, epoch);
  if (run.plan.joint) usePass(run.plan.joint->trainingPass(memberNumber(run.plan), epoch), options);
  return options;
}

Loader::Options evaluationOptions(const PreparedRun& run) {
  Loader::Options options;
  options.batch = run.settings.evalBatch;
  options.threads = run.settings.data.threads;
  if (run.plan.joint) usePass(run.plan.joint->evaluationPass(memberNumber(run.plan)), options);
  return options;
}

Batch firstBatch(const PreparedRun& run) {
  const Loader::Options options = trainingOptions(run, 1);
  return *Loader(run.data.train, std::make_shared<BufferPool>(), options).next();
}

}  // namespace cleave
