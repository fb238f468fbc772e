#include "client/run/prepare.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <span>

#include "client/data/loader.h"
#include "client/data/subset.h"
#include "client/run/earlier_run.h"
#include "common/core/durable.h"
#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/sha256.h"
#include "common/core/units.h"
#include "common/model/blocks.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"
#include "common/run/run_folder.h"
#include "common/run/self_check.h"
#include "common/run/torch_errors.h"

namespace cleave {
namespace {

// Prefixes of run names, by Purpose.
constexpr const char* kPrefixes[] = {"", "measure-", "verify-", "infer-"};

// Returns NAME-YYYYMMDD-hhmmss-xxxx. Ids sort by time, and the random suffix distinguishes runs
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
  return fmt::format("{}-{}-{:04x}", id, stamp, std::random_device{}() & 0xffff);
}

// Makes no DNS query: an address is one of this machine's if a socket can be bound to it.
bool isThisMachine(const std::string& host) {
  boost::system::error_code error;
  if (host == "localhost" || host == boost::asio::ip::host_name(error)) return true;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error) return false;
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  const boost::asio::ip::tcp::endpoint endpoint(address, 0);
  socket.open(endpoint.protocol(), error);
  if (!error) socket.bind(endpoint, error);
  return !error;
}

// The trace omits the first step, which is a warm-up, unless it is the only one.
void requestTrace(RunSpec& spec, std::uint64_t steps, std::uint64_t totalSteps) {
  const std::uint64_t first = totalSteps > 1 ? 2 : 1;
  spec.trace = {first, std::min(steps, totalSteps - first + 1)};
}

void warnOfLargeBatch(PreparedRun& run) {
  const std::uint32_t size = run.data.train->size();
  if (run.settings.batch <= size) return;
  run.warnings.push_back(
      fmt::format("train.batch is {}, but there are only {} training samples: each epoch is one "
                  "step of {} samples; lower train.batch",
                  run.settings.batch, size, size));
}

void warnOfEvaluation(PreparedRun& run) {
  const std::vector<std::string> drawn =
      withTorchErrors([&] { return run.userModel->drawnInEvaluation(); });
  if (drawn.empty()) return;
  run.warnings.push_back(fmt::format(
      "{} has no evaluation graph, so evaluations and predictions also draw the random numbers of "
      "{}{}, and may differ from PyTorch's model.eval(); export the model again with cleave.export",
      run.settings.modelFile, drawn.front(),
      drawn.size() == 1 ? ""
                        : fmt::format(" and {}", countText(drawn.size() - 1, "more operator"))));
}

void warnOfInputs(PreparedRun& run) {
  if (parameterCount(run.plan.blocks, 0, run.plan.stage.cuts.cut0) > 0) return;
  run.warnings.emplace_back(
      "the head has no parameters, so the server receives the inputs themselves; to keep them on "
      "the client, move the first cut (model.cuts) behind a layer with parameters");
}

// Batch norm uses the statistics of each micro-batch. With few samples, they are noise.
void warnOfSmallNorms(PreparedRun& run) {
  constexpr std::uint32_t kMinSamples = 8;
  if (!hasBatchNorm(run.plan.blocks)) return;
  const ClientSettings& settings = run.settings;
  const std::uint32_t size = run.data.train->size();
  const std::uint32_t batch = std::min(settings.batch, size);
  const std::uint32_t whole = Division::of(batch, settings.microBatches).smallest();
  const std::uint32_t smallest = minMicroBatch(settings, *run.data.train);
  if (smallest >= kMinSamples) return;
  if (whole >= kMinSamples) {
    run.warnings.push_back(fmt::format(
        "batch norm computes its statistics from each micro-batch, and the smallest of each "
        "epoch's last batch has only {}: choose a train.batch that divides {} samples with less "
        "rest, or lower train.micro_batches",
        countText(smallest, "sample"), size));
    return;
  }
  run.warnings.push_back(fmt::format("batch norm computes its statistics from each micro-batch, "
                                     "and the smallest has only {} (a "
                                     "batch of {} in {} micro-batches), which can ruin the model: "
                                     "set train.micro_batches to {}",
                                     countText(whole, "sample"), batch,
                                     Division::of(batch, settings.microBatches).count,
                                     std::max(1U, batch / kMinSamples)) +
                         (batch < kMinSamples ? ", and raise train.batch" : ""));
}

// Removes the codecs of flows that the run does not have, such as the gradient of a cut that needs
// none.
void dropUnusedFlows(PreparedRun& run) {
  const auto isUnused = [&](const auto& each) {
    return std::none_of(run.bodies.begin(), run.bodies.end(), [&](const RunPlan& body) {
      return body.place.contains(*flowFromName(each.first));
    });
  };
  std::erase_if(run.settings.codecs, isUnused);
  std::erase_if(run.settings.autoCodecs, isUnused);
}

// Throws UsageError if the loss cannot compare the model's output with the data's target.
void checkTarget(const PreparedRun& run) {
  const SampleArray target = run.data.train->arrays().back();
  const Shape& output = run.plan.blocks.back().outputShape();
  const int classes = run.data.train->classes();
  const ScoreSpec& scores = run.settings.scores;
  checkLoss(scores.loss, output, target.dtype, target.shape);
  if (findLoss(scores.loss.name).target != TargetKind::classes) return;
  const auto& metrics = scores.metrics;
  if (output.back() != 2 && std::find(metrics.begin(), metrics.end(), "auroc") != metrics.end()) {
    throw UsageError(
        "bad-metric",
        fmt::format("the metric auroc is for two classes, but the model has {}", output.back()),
        "remove auroc from train.metrics");
  }
  const std::size_t names = run.settings.data.classNames.size();
  if (names > 0 && names != static_cast<std::size_t>(output.back())) {
    throw UsageError("bad-class-names",
                     fmt::format("data.class_names has {} names, but the model has {} classes",
                                 names, output.back()),
                     "give one name per class, in the order of their numbers");
  }
  for (const Dataset* data : {run.data.train.get(), run.data.test.get()}) {
    const std::int64_t max = data->arrays().back().maxValue;
    if (max < output.back()) continue;
    throw UsageError("bad-label",
                     fmt::format("the data has the label {}, but the model has {} classes, 0 to {}",
                                 max, output.back(), output.back() - 1),
                     "correct the data or data.target, or export a model with more classes");
  }
  if (classes == 0 || output.back() == classes) return;
  const std::vector<KeyText> keys = findDataFormat(run.settings.data.format).keys().texts();
  const bool isSet = std::any_of(keys.begin(), keys.end(),
                                 [](const KeyText& key) { return key.name == "data.classes"; });
  throw UsageError("bad-output",
                   fmt::format("the model returns {} per sample, but the data has {} classes",
                               toString(output), classes),
                   fmt::format("export a model that returns [samples, {}]{}", classes,
                               isSet ? ", or correct data.classes" : ""));
}

// By error code: the configuration key to name in errors that are detected only when model and data
// are combined.
const std::map<std::string, std::string> kKeysOfErrors = {
    {"bad-cuts", "model.cuts"},
    {"bad-model-parameter", "model"},
    {"bad-graph", "model.file"},
    {"bad-model-file", "model.file"},
    {"no-model-file", "model.file"},
    {"graph-too-large", "model.cuts"},
    {"bad-sample-shape", "model.name"},
    {"bad-weights", "weights"},
    {"bad-safetensors", "weights.file"},
    {"no-weights", "weights.file"},
    {"bad-classes", "data.classes"},
    {"bad-target", "train.loss"},
    {"bad-lora", "model.lora"},
    {"no-input", "data.train.file"},
    {"no-target", "data.target"},
    {"bad-metric", "train.metrics"},
    {"unknown-parameter", "train"},
    {"bad-class-names", "data.class_names"},
    {"nothing-to-train", "train.freeze"},
    {"batch-norm-too-few", "train.micro_batches"},
    {"bad-image-transform", "data"},
    {"bad-subset", "data"},
    {"bad-input", "model.file"},
    {"bad-output", "model.file"},
    {"bad-insert", "insert"},
    {"bad-codec-spec", "codec"},
};

ThreadCount threadsBeside(const std::vector<ServerAddress>& servers, int asked) {
  const bool isBeside = servers.empty() || std::any_of(servers.begin(), servers.end(),
                                                       [](const ServerAddress& server) {
                                                         return isThisMachine(server.host);
                                                       });
  return chooseThreads(usableCores(), asked, 0, isBeside);
}

void checkServerCount(const PreparedRun& run) {
  const std::size_t bodies = run.settings.bodies();
  if (run.settings.replicas > 1 && bodies > 1) {
    throw UsageError("bad-servers",
                     "the body has replicas, but model.cuts divides the model among several bodies",
                     "give model.cuts two values, or one address per body");
  }
  // A body's addresses are joined by "+"; a comma separates bodies.
  if (run.settings.replicas > 1 && run.servers.size() != run.settings.replicas) {
    throw UsageError("bad-servers",
                     "model.cuts has two values, so there is one body, but addresses of more than "
                     "one are given",
                     "join the addresses of its replicas by + only, as in --server "
                     "10.0.0.5:4800+10.0.0.6:4800");
  }
  if (run.servers.empty() || run.servers.size() == bodies * run.settings.replicas) return;
  throw UsageError(
      "bad-servers",
      fmt::format("model.cuts has {} values, so the run needs {}, but {} given", bodies + 1,
                  countText(bodies, "server"),
                  run.servers.size() == 1 ? std::string("1 address is")
                                          : fmt::format("{} addresses are", run.servers.size())),
      "give one address per body, as in --server 10.0.0.5:4800,10.0.0.6:4800; the same server may "
      "be given several times");
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

// Sets `servers` and `settings.replicas`. `bodies`: from --server; if empty, those of the
// configuration count. An inference uses only the first replica, which does not change its results.
void chooseServers(PreparedRun& run, std::vector<BodyServers> bodies, Purpose purpose) {
  const bool isInference = purpose == Purpose::inference;
  if (bodies.empty() && !isInference) {
    for (const std::string& server : run.settings.servers) {
      bodies.push_back(parseBodyServers(server));
    }
  }
  for (BodyServers& body : bodies) {
    if (isInference) body.resize(1);
    run.settings.replicas =
        std::max(run.settings.replicas, static_cast<std::uint32_t>(body.size()));
  }
  run.servers = allServers(bodies);
  checkServerCount(run);
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

// Sets `threads`; needs `servers`.
void chooseThreadsOf(PreparedRun& run, Purpose purpose) {
  const bool isAlone = purpose == Purpose::inference && run.servers.empty();
  const ThreadCount count = isAlone
                                ? chooseThreads(usableCores(), run.settings.clientThreads, 0, false)
                                : threadsBeside(run.servers, run.settings.clientThreads);
  run.threads = count.threads;
  run.threadsText = count.text;
  if (purpose == Purpose::verification || purpose == Purpose::inference) {
    run.settings.serverThreads = run.threads;
  }
}

// Opens the data, reads a user's model and makes the plan.
void planRunOf(PreparedRun& run, const RunOptions& options, Purpose purpose,
               const DataOpener& open) {
  const bool isResumed = !options.resume.empty();
  run.data = isResumed ? openAgain(run.settings.data, open) : open(run.settings.data);
  if (purpose == Purpose::training) {
    run.trainDigest = digestOf(*run.data.train);
    run.evaluationDigest = digestOf(*run.data.test);
  }
  if (isResumed) checkSameData(run, options.resume);
  if (purpose != Purpose::inference) warnOfLargeBatch(run);
  if (!run.settings.modelFile.empty()) {
    run.userModel =
        withTorchErrors([&] { return std::make_shared<const UserModel>(run.settings); });
    run.data = run.userModel->inputsFrom(run.data);
    warnOfEvaluation(run);
  }
  if (purpose != Purpose::inference) checkReplicaBatches(run.settings, run.data);
  RunSpec spec = makeRunSpec(run.settings, run.data, run.userModel.get());
  if (options.traceSteps > 0) {
    requestTrace(spec, options.traceSteps, totalSteps(run.settings, *run.data.train));
  }
  planFor(run, spec);
  if (purpose == Purpose::training) {
    warnOfInputs(run);
    for (std::string& warning : missingClassWarnings(*run.data.train, *run.data.test)) {
      run.warnings.push_back(std::move(warning));
    }
  }
  dropUnusedFlows(run);
  checkTarget(run);
  if (purpose != Purpose::inference) {
    checkBatchNorm(run.plan.blocks, minMicroBatch(run.settings, *run.data.train));
    warnOfSmallNorms(run);
  }
  WeightsReport report;
  initialWeights(run, &report);  // only checks the weights
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

ThreadCount clientThreads(const RunOptions& options, int asked) {
  return threadsBeside(allServers(parseAddresses(options.server)), asked);
}

PreparedRun resolveRun(const RunOptions& options, Purpose purpose, const DataOpener& open) {
  PreparedRun run;
  std::vector<BodyServers> servers = parseAddresses(options.server);  // its errors come first
  Config config = configOf(options, purpose);
  run.settings = readClientSettings(config);
  if (!options.resume.empty()) run.changes = changesOfEarlierRun(options, config, run.settings);
  chooseServers(run, std::move(servers), purpose);
  if (purpose == Purpose::training) useLosslessOnLoopback(run);
  chooseThreadsOf(run, purpose);
  checkAt(config, kKeysOfErrors, [&] { planRunOf(run, options, purpose, open); });
  run.hello = helloOf(run, purpose);
  return run;
}

std::uint32_t minMicroBatch(const ClientSettings& settings, const Dataset& train) {
  const std::uint32_t last = train.size() % settings.batch;
  const std::uint32_t whole = Division::of(settings.batch, settings.microBatches).smallest();
  return last == 0 ? whole : std::min(whole, Division::of(last, settings.microBatches).smallest());
}

void logWarnings(const PreparedRun& run, spdlog::logger& log) {
  for (const std::string& warning : run.warnings) log.warn(warning);
}

RunPlan clientPlan(const RunSpec& spec, const ClientSettings& settings, const UserModel* model) {
  RunPlan plan = planClient(spec, innerCutsOf(settings.cutPositions()),
                            model == nullptr ? nullptr : model->blocks());
  plan.stage.scores = settings.scores;
  plan.stage.clientPrecision = settings.clientPrecision;
  return plan;
}

std::vector<RunPlan> bodyPlans(const RunPlan& plan, const ClientSettings& settings,
                               const Dataset& train, const UserModel* model) {
  if (settings.bodies() == 1) {
    std::vector<RunPlan> replicas;
    for (std::uint32_t rank = 0; rank < settings.replicas; ++rank) {
      replicas.push_back(planReplica(plan, rank));
    }
    return replicas;
  }
  RunSpec resolved = plan.spec;
  resolved.inFlight = plan.inFlight;
  std::vector<RunPlan> bodies;
  for (const RunSpec& spec : bodyRunSpecs(resolved, settings, train, model)) {
    bodies.push_back(isDivided(settings, model) ? planClient(spec, {}, model->blocks())
                                                : planRun(spec));
    bodies.back().hasEdges = settings.hasEdges();
    if (settings.hasEdges() && bodies.size() > 1) {
      checkEdgeCodecs(bodies.back(), true, false);
    }
  }
  return bodies;
}

void planFor(PreparedRun& run, const RunSpec& spec) {
  run.plan = clientPlan(spec, run.settings, run.userModel.get());
  run.bodies = bodyPlans(run.plan, run.settings, *run.data.train, run.userModel.get());
  run.plan.samplesOnDisk = run.settings.samplesOnDisk;
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

void requireOneServer(const ClientSettings& settings, const std::string& what) {
  if (settings.bodies() == 1) return;
  throw UsageError(
      "several-servers",
      fmt::format("{} does not support several servers yet, but model.cuts divides the "
                  "model among {}",
                  what, settings.bodies()),
      "give model.cuts two values");
}

void checkReplicaBatches(const ClientSettings& settings, const Datasets& data) {
  if (settings.replicas == 1) return;
  const auto check = [&](const char* key, std::uint32_t all, std::uint32_t batch) {
    for (const std::uint32_t samples : {std::min(all, batch), all % batch}) {
      const std::uint32_t count = Division::of(samples, settings.microBatches).count;
      if (samples == 0 || count >= settings.replicas) continue;
      throw UsageError(
          "bad-replicas",
          fmt::format("a batch of {} is divided into fewer micro-batches, {}, than the body has "
                      "replicas, {}",
                      countText(samples, "sample"), count, settings.replicas),
          count < samples ? "set train.micro_batches to a multiple of the number of replicas"
                          : fmt::format("change {}, so that the last batch has more samples", key));
    }
  };
  check("train.batch", data.train->size(), settings.batch);
  check("eval.batch", data.test->size(), settings.evalBatch);
}

void requireProfilable(const PreparedRun& run) {
  if (!run.settings.inserts.empty()) {
    requireOneServer(run.settings, "a profile of a model with learned inserts");
  }
}

PreparedRun dividedAt(PreparedRun run, std::vector<std::string> cuts) {
  if (!run.userModel) return run;
  ClientSettings settings = run.settings;
  settings.cuts = run.userModel->positionsAmong(settings.cutNames, cuts);
  settings.cutNames = cuts;
  cuts.emplace_back("(rest)");
  run.userModel =
      withTorchErrors([&] { return std::make_shared<const UserModel>(settings, cuts); });
  settings.cutNames.clear();  // the positions count
  run.settings = std::move(settings);
  planFor(run, makeRunSpec(run.settings, run.data, run.userModel.get()));
  return run;
}

std::vector<std::string> cutsOf(const Profile& profile) {
  std::vector<std::string> names;
  for (const BlockProfile& block : profile.blocks) names.push_back(block.name);
  names.pop_back();
  return names;
}

std::string addressesText(const PreparedRun& run) {
  std::string text;
  for (const ServerAddress& server : run.servers) {
    text += (text.empty() ? "" : run.settings.replicas > 1 ? "+" : ", ") + server.text();
  }
  return text;
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

// Starts the last one first, because each may connect to the next one only.
void startLocalServers(PreparedRun& run) {
  const std::vector<std::string> models = overridesFor(run.settings.model);
  std::vector<std::string> edges;
  for (std::size_t b = run.bodies.size(); b-- > 0;) {
    const std::string store =
        run.folder + "/server" + (b == 0 ? std::string() : fmt::format("-{}", b + 1));
    if (run.settings.hasEdges() && b > 0) edges.emplace_back("edges.accept=true");
    std::vector<std::string> overrides = edges;
    overrides.insert(overrides.end(), models.begin(), models.end());
    run.localServers.insert(run.localServers.begin(),
                            std::make_unique<LocalServer>(store, run.settings.device, overrides));
    const ServerAddress address = run.localServers.front()->address();
    run.servers.insert(run.servers.begin(), address);
    if (run.settings.hasEdges()) edges = {fmt::format("edges.allow=[\"{}\"]", address.text())};
  }
}

}  // namespace

void placeCodecs(PreparedRun& run) {
  useDeviceCodecs(run.plan, *run.device);
  for (RunPlan& body : run.bodies) {
    for (const Flow flow : body.flows()) {
      if (!run.plan.place.contains(flow)) continue;
      body.deviceCodecs[flow] = run.plan.deviceCodecs.get(flow);
      if (const auto* eight = run.plan.eightBitDeviceCodecs.find(flow)) {
        body.eightBitDeviceCodecs[flow] = *eight;
      }
    }
  }
}

namespace {

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

void checkAnswer(const wire::HelloOk& ok, const RunPlan& plan) {
  constexpr std::uint32_t kMaxThreads = 1 << 16;
  const auto refuse = [](const std::string& sentence) {
    throw ProtocolError("bad-metadata", "a HelloOk " + sentence,
                        "install the same version of Cleave on both machines");
  };
  if (ok.in_flight() != plan.inFlight) {
    refuse(fmt::format("has {} micro-batches in flight; the run has {}", ok.in_flight(),
                       plan.inFlight));
  }
  if (ok.threads() == 0 || ok.threads() > kMaxThreads) {
    refuse(fmt::format("has {} threads, which is not in 1…{}", ok.threads(), kMaxThreads));
  }
  if (ok.body_bytes() == 0 || ok.body_bytes() > maxWeightsBytes(plan)) {
    refuse(fmt::format("claims {} bytes for the body's weights, which have at most {}",
                       ok.body_bytes(), maxWeightsBytes(plan)));
  }
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

Batch firstBatch(const PreparedRun& run) {
  return *Loader(run.data.train, std::make_shared<BufferPool>(),
                 trainingOptions(run.settings, run.data, 1))
              .next();
}

// The sum of six parts: the parameters with gradients and optimizer state; the tensors that
// autograd saves (in the head for all micro-batches in flight, in the tail for one); the decoded
// and encoded tensors of the head and the tail; the samples that their codecs keep; the encoded
// tensors that are passed on between servers; and the batches that the loader holds.
std::size_t clientBytes(const RunPlan& plan, const std::vector<RunPlan>& bodies,
                        const Dataset& train) {
  const int cut0 = plan.stage.cuts.cut0, cut1 = plan.stage.cuts.cut1;
  const auto bytesOf = [&](int first, int last, std::uint32_t inFlight) {
    return static_cast<double>(partBytes(plan.stage, plan.blocks, first, last,
                                         plan.spec.microBatches, inFlight,
                                         plan.largestMicroBatch()));
  };
  double bytes = bytesOf(0, cut0, plan.inFlight) +
                 bytesOf(cut1, static_cast<int>(plan.blocks.size()), 1) + flowBytes(plan) +
                 samplesMemory(plan) + passedOnBytes(bodies);
  // The batches in use, the batches prepared ahead, and during an evaluation the first batch of the
  // next epoch.
  const double batches = 2 * plan.spec.staleness + Loader::Options().ahead + 2;
  for (const SampleArray& array : train.arrays()) {
    bytes += batches * plan.spec.maxBatch * static_cast<double>(specOf(array, 1).bytes());
  }
  return static_cast<std::size_t>(std::min(bytes, 0x1p62));
}

}  // namespace cleave
