#include "tests/simulation/simulation.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "client/commands/commands.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"
#include "common/config/config.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/files/sha256.h"
#include "common/program/program.h"
#include "common/run/device.h"
#include "server/config/settings.h"
#include "server/sessions/server.h"
#include "tests/simulation/network.h"

namespace cleave::sim {
namespace {

namespace fs = std::filesystem;

// Settings shared by all scenarios.
constexpr const char* kConfig = R"(
run: {name: crash}
threads: {client: 1, server: 1}
connect: {retry_seconds: 30, reconnect_seconds: 120}
)";
constexpr const char* kDamaged = "checkpoint damaged";
constexpr Nanoseconds kBetweenChecks = kSecond / 4;  // see haveNewestCommit()
constexpr Nanoseconds kPatience = 300 * kSecond;     // see isOver()
constexpr int kMaxStarts = 60;                       // maximum starts of clients
constexpr int kMaxFailures = 8;  // maximum failures of clients after the last fault

std::string nameOf(Node node) {
  if (node == kServer) return "server";
  return node == kClient ? "client" : fmt::format("client{}", 1 + node - kClient);
}

// Copies folders, with their modes, and regular files; a store also has a socket.
void copyFiles(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& each : fs::recursive_directory_iterator(from)) {
    const fs::path target = to / each.path().lexically_relative(from);
    if (each.is_directory()) fs::create_directory(target, each.path());
    if (each.is_regular_file()) fs::copy_file(each.path(), target);
  }
}

std::vector<std::string> fieldsOf(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
  return fields;
}

}  // namespace

// Together, the scenarios cover everything that has a state: dropout, batch statistics, Adam,
// momentum, on each side codecs with a power iteration, kept samples and residuals, the versions of
// the weights that overlapping steps need, and the parts of a cohort's members. A run of one client
// takes 24 steps.
const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"mlp, adam, dropout, power iteration", R"(
model: {name: mlp, width: 8, depth: 2, dropout: 0.1}
data: {format: synthetic, shape: [1, 4, 4], classes: 4, train: {size: 64}, test: {size: 16}}
train: {batch: 8, micro_batches: 2, epochs: 3, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 8}
codec: {activation/0: "power:rank=2", activation/1: "block:bits=8", gradient/1: "block:bits=8", gradient/0: "power:rank=2"}
checkpoint: {every_steps: 4}
)",
       false},
      {"small_cnn, momentum, batch norm, delta, power", R"(
model: {name: small_cnn, width: 4}
data: {format: synthetic, shape: [1, 8, 8], classes: 4, train: {size: 48}, test: {size: 8}}
train: {batch: 6, micro_batches: 3, epochs: 3, optimizer: {name: sgd, momentum: 0.9}, learning_rate: {schedule: constant, peak: 0.05}}
eval: {batch: 8}
codec: {activation/0: 'delta(block:bits=4)', activation/1: 'delta(block:bits=4)', gradient/1: 'power:rank=2', gradient/0: 'power:rank=2'}
checkpoint: {every_steps: 3, keep: 3}
)",
       false},
      {"small_cnn with TLS, adam, checkpoints by time", R"(
model: {name: small_cnn, width: 4, dropout: 0.2}
data: {format: synthetic, shape: [1, 8, 8], classes: 4, train: {size: 48}, test: {size: 8}}
train: {batch: 6, micro_batches: 2, epochs: 3, optimizer: {name: adam}, learning_rate: {schedule: constant, peak: 0.01}}
eval: {batch: 8, every: 2}
codec: {activation/0: "power:rank=2", activation/1: "uniform:bits=8", gradient/1: "block:bits=8", gradient/0: "block:bits=8"}
checkpoint: {every_seconds: 1}
)",
       true},
      {"small_cnn, overlapping steps", R"(
model: {name: small_cnn, width: 4, dropout: 0.1}
data: {format: synthetic, shape: [1, 8, 8], classes: 4, train: {size: 48}, test: {size: 8}}
train: {batch: 6, micro_batches: 2, epochs: 3, staleness: 2, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 8}
codec: block:bits=8
checkpoint: {every_steps: 3}
)",
       false},
      {"a cohort of three, adam, dropout, power iteration", R"(
model: {name: mlp, width: 8, depth: 2, dropout: 0.1}
data: {format: synthetic, shape: [1, 4, 4], classes: 4, test: {size: 8}}
train: {batch: 12, micro_batches: 2, epochs: 3, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 12}
codec: {activation/0: "power:rank=2", activation/1: "block:bits=8", gradient/1: "block:bits=8", gradient/0: "block:bits=8"}
checkpoint: {every_steps: 3}
cohort: {id: abc, members: [a, b, c]}
)",
       false, 3},
      {"a cohort of three that goes on with two", R"(
model: {name: small_cnn, width: 4, dropout: 0.1}
data: {format: synthetic, shape: [1, 16, 16], classes: 4, test: {size: 8}}
train: {batch: 12, micro_batches: 2, epochs: 3, optimizer: {name: sgd, momentum: 0.9}, learning_rate: {schedule: cosine, peak: 0.05}}
eval: {batch: 12}
codec: none
checkpoint: {every_steps: 3}
cohort: {id: abc, members: [a, b, c], min_members: 2, begin_members: 2, wait_seconds: 2}
)",
       false, 3, true}};
  return all;
}

std::string Fault::text() const {
  const std::string side = nameOf(node);
  switch (kind) {
    case Kind::kill:
      return fmt::format("{} killed at change {} of its files", side, at);
    case Kind::losePower:
      return fmt::format("{} loses power at change {} of its files", side, at);
    case Kind::fullDisk:
      return fmt::format("{} disk full at change {} of its files", side, at);
    case Kind::badDisk:
      return fmt::format("{} disk fails at change {} of its files", side, at);
    case Kind::killAll:
      return fmt::format("all killed at change {} of the {}'s files", at, side);
    case Kind::killAfterSwitches:
      return fmt::format("{} killed after {} switches", side, at);
    case Kind::killAllAfterSwitches:
      return fmt::format("all killed after {} switches", at);
    case Kind::cutAfterBytes:
      return fmt::format("cut after {} bytes", at);
    case Kind::cutAfterFrames:
      return fmt::format("cut after {} frames", at);
  }
  return "";
}

std::string readAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

fs::path runFolderOf(const fs::path& folder, Node client) {
  return folder / nameOf(client) / "run";
}

std::string resultOf(const fs::path& run) {
  const std::string model = readAll(run / "model.safetensors");
  if (model.empty() || !fs::exists(run / "summary.json")) return "";
  std::string result = hexOf(sha256Of(model));

  // If an epoch has several rows, the last one counts (docs/metrics.md).
  std::ifstream rows(run / "epochs.csv");
  std::string line;
  std::getline(rows, line);
  const std::vector<std::string> header = fieldsOf(line);
  std::map<std::string, std::string> byEpoch;
  while (std::getline(rows, line)) {
    std::vector<std::string> fields = fieldsOf(line);
    fields.resize(header.size());
    std::string epoch, metrics;
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (header[i] == "epoch") epoch = fields[i];
      const bool isMetric = header[i].starts_with("train_") || header[i].starts_with("eval_");
      if (isMetric && !header[i].ends_with("_seconds")) metrics += " " + fields[i];
    }
    byEpoch[epoch] = metrics;
  }
  for (const auto& [epoch, metrics] : byEpoch) result += "\n" + epoch + ":" + metrics;
  return result;
}

// ---- Daemons ----

bool Simulation::mustStart() const {
  return isServerAway() || std::any_of(clients_.begin(), clients_.end(), [&](const Client& each) {
           return isAway(each) && (!each.startAt || *each.startAt <= now());
         });
}

void Simulation::startServer() {
  serverEnded_ = false;
  ++serverStarts_;
  start(kServer, [this] {
    try {
      std::vector<std::string> keys = {"listen.port=" + std::to_string(kPortOfServer),
                                       "store=" + store().string(), "threads=1"};
      if (scenario_.tls) {
        keys.emplace_back("tls.enabled=true");
        keys.push_back("tls.folder=" + (certificates_ / "server").string());
      }
      Config config = Config::parse("", "simulation", keys);
      const ServerSettings settings = readServerSettings(config);
      Server server(settings, openDevice("cpu"), nullptr);
      server.run();
    } catch (const std::exception& error) {
      std::cerr << "server: " << error.what() << "\n";
    }
    serverEnded_ = true;
  });
}

void Simulation::startClient(Client& client) {
  client.exitCode.reset();
  client.errorCode.clear();
  start(client.node, [this, &client, fromStart = std::exchange(client.fromStart, false),
                      takeOver = std::exchange(client.takeOver, false)] {
    const fs::path runFolder = this->runFolder(client.node);
    TrainOptions options;
    options.quiet = true;
    options.run.common.logLevel = logLevel_;
    options.run.server = "127.0.0.1:" + std::to_string(kPortOfNetwork);
    if (scenario_.tls) options.run.tls = (certificates_ / "client").string();
    if (fs::exists(runFolder / "run.json")) {
      options.run.resume = runFolder.string();
      options.run.fromStart = fromStart;
      options.run.takeOver = takeOver;
    } else {
      options.run.common.config = (folder_ / "run.yaml").string();
      options.run.runDir = runFolder.string();
      if (scenario_.clients > 1) {  // members with different data, and unequal shares
        const int member = client.node - kClient;
        options.run.common.overrides = {fmt::format("cohort.member={}", "abc"[member]),
                                        fmt::format("data.seed={}", member),
                                        fmt::format("data.train.size={}", 16 * (member + 1))};
      }
    }
    int code = 0;
    try {
      code = trainCommand(options);
    } catch (...) {
      code = reportError("cleave-client", std::current_exception());
      try {
        throw;
      } catch (const ProtocolError& error) {
        client.errorCode = error.code();
        peerIsWrong_ = true;
      } catch (const Error& error) {
        client.errorCode = error.code();
        peerIsWrong_ = peerIsWrong_ || client.errorCode == "no-progress";
      } catch (...) {
        client.errorCode = "internal-error";
      }
    }
    client.exitCode = code;
  });
}

bool Simulation::isDone(const Client& client) const {
  if (client.exitCode == 0 || client.errorCode == "cohort-done") return true;
  // A client may be killed or fail after it has completed the run.
  return (client.errorCode == "run-done" || !isAlive(client.node)) && isComplete(client);
}

bool Simulation::isComplete(const Client& client) const {
  const fs::path run = runFolder(client.node);
  return fs::exists(run / "summary.json") && fs::exists(run / "model.safetensors");
}

// A client waits for the other members until its user stops it if its server fails in the moment in
// which one of them has ended the run, or if it begins its own run only then.
bool Simulation::isOver() {
  const auto complete = [&](const Client& each) { return isComplete(each); };
  const bool hasResult = std::any_of(clients_.begin(), clients_.end(), complete);
  const bool mayWait = scenario_.goesOn || serverStarts_ > 1 || !disksWork_;
  if (hasResult && clients_.size() > 1 && mayWait && !resultSince_) resultSince_ = now();
  return (resultSince_ && now() - *resultSince_ > kPatience) ||
         std::all_of(clients_.begin(), clients_.end(),
                     [&](const Client& each) { return isDone(each); });
}

bool Simulation::isRunning(const Client& client) const {
  return isAlive(client.node) && !client.exitCode;
}

bool Simulation::isAway(const Client& client) const {
  return !isRunning(client) && !isDone(client);
}

bool Simulation::isAnyoneAway() const {
  return isServerAway() || std::any_of(clients_.begin(), clients_.end(),
                                       [&](const Client& each) { return isAway(each); });
}

// ---- Faults ----

void Simulation::count(const std::string& name) {
  ++counts_[name];
  std::cerr << fmt::format("simulation: {:.3f} s: {}\n",
                           static_cast<double>(now()) / static_cast<double>(kSecond), name);
}

std::string Simulation::summary() const {
  std::string text;
  for (const auto& [name, count] : counts_) text += fmt::format(", {} x {}", count, name);
  return text;
}

void Simulation::arm(const Fault& fault) {
  count(fault.text());
  switch (fault.kind) {
    case Fault::Kind::kill:
    case Fault::Kind::losePower:
      return killAtFileCall(fault.node, fault.at, fault.kind == Fault::Kind::losePower);
    case Fault::Kind::fullDisk:
    case Fault::Kind::badDisk:
      disksWork_ = false;
      return failFiles(fault.node, fault.at, 1, fault.kind == Fault::Kind::fullDisk ? ENOSPC : EIO);
    case Fault::Kind::killAll:
      return killAllAtFileCall(fault.node, fault.at);
    case Fault::Kind::killAfterSwitches:
      return killAt(fault.node, fault.at, false);
    case Fault::Kind::killAllAfterSwitches:
      for (const Client& client : clients_) killAt(client.node, fault.at, false);
      return killAt(kServer, fault.at, false);
    case Fault::Kind::cutAfterBytes:
      return cutNetworkAfter(fault.at);
    case Fault::Kind::cutAfterFrames:
      return cutNetworkAfterFrame(fault.at);
  }
}

Node Simulation::drawClient() const { return clients_[draw(clients_.size())].node; }

Node Simulation::drawNode() const { return draw(2) == 0 ? drawClient() : kServer; }

void Simulation::armRandom() {
  const std::uint64_t soon = switches() + draw(6000);
  const bool isLost = scenario_.goesOn && draw(2) == 0;  // of members, more than of others
  const Node node = isLost ? drawClient() : drawNode();
  const std::string name = nameOf(node);
  switch (isLost ? 0 : draw(11)) {
    case 0:
    case 1:
      count(name + " killed");
      return killAt(node, soon, false);
    case 2:
      count("all killed");
      for (const Client& client : clients_) killAt(client.node, soon + draw(50), false);
      return killAt(kServer, soon + draw(50), false);
    case 3:
    case 4:
      count(name + " loses power");
      return killAt(node, soon, true);
    case 5:
    case 6:
      count("link cut");
      return cutNetworkAfter(draw(20'000));
    case 7:
      count("link silent");
      return silenceNetwork(now() + static_cast<Nanoseconds>(draw(60)) * kSecond);
    case 8:
      count("link cut every 2 s");
      return cutNetworkAgainAndAgain(now() + 60 * kSecond);
    case 9: {
      count(name + "'s disk fails");
      disksWork_ = false;
      const std::uint64_t length = draw(2) == 0 ? 1 : 1 + draw(30);
      return failFiles(node, fileCalls(node) + draw(60), length, draw(2) == 0 ? ENOSPC : EIO);
    }
    default:
      count("clock shifted");
      // The offset is up to 17 hours in either direction. With TLS, it is up to 33 hours and only
      // forward, because certificates are not valid before they are created.
      return shiftWallClock((static_cast<Nanoseconds>(draw(200)) - (scenario_.tls ? 0 : 100)) *
                            600 * kSecond);
  }
}

// Call it while a program is away. Randomly damages a newest checkpoint, deletes the store of
// a stopped server, restores the folder of a stopped client or that store from a backup, makes the
// backups, or does nothing. In a cohort, it only damages one checkpoint: after any other loss, the
// members must start a new run together.
void Simulation::loseFiles() {
  const bool clientRuns = isRunning(clients_.front());
  if (clients_.size() > 1) {
    const Node node = drawNode();
    const bool runs =
        node != kServer && isRunning(clients_[static_cast<std::size_t>(node - kClient)]);
    if (!runs && draw(6) == 0 && counts_[kDamaged] == 0) damageCheckpoint(node);
    return;
  }
  switch (draw(12)) {
    case 0:
    case 1:
      if (!clientRuns) damageCheckpoint(drawNode());
      return;
    case 2:
      if (isAlive(kServer)) return;
      count("store lost");
      filesAreLost_ = true;
      fs::remove_all(store());
      return syncFolder(kServer);
    case 3:
      if (!clientRuns) restore(kClient);
      return;
    case 4:
    case 5:
      return backUp();
    case 6:
      if (!isAlive(kServer)) restore(kServer);
      return;
    default:
      return;
  }
}

void Simulation::backUp() {
  const fs::path run = runFolder(kClient);
  if (!fs::exists(run / "run.json") || !fs::exists(store())) return;
  const fs::path backup = folder_ / "backup";
  fs::remove_all(backup);
  copyFiles(run, backup / "client");
  copyFiles(store(), backup / "server");
}

// Replaces the client's folder or the server's store with its backup, including the connections.
void Simulation::restore(Node node) {
  const fs::path backup = folder_ / "backup" / nameOf(node);
  if (!fs::exists(backup)) return;
  count(node == kClient ? "client's folder restored" : "store restored");
  filesAreLost_ = true;
  const fs::path folder = node == kClient ? runFolder(node) : store();
  fs::remove_all(folder);
  copyFiles(backup, folder);
  syncFolder(node);
}

// Damages the newest checkpoint of a node, or a file with samples that checkpoints share.
void Simulation::damageCheckpoint(Node node) {
  std::vector<fs::path> files, shared;
  for (const auto& each : fs::recursive_directory_iterator(folder_ / nameOf(node))) {
    const bool isCheckpoint = each.path().parent_path().filename() == "checkpoints";
    if (isCheckpoint && each.path().extension() == ".safetensors") files.push_back(each.path());
    if (isCheckpoint && each.path().extension() == ".samples") shared.push_back(each.path());
  }
  // If a member has no other checkpoint, all members must start a new run.
  const std::size_t needed = clients_.size() > 1 ? 2 : 1;
  if (files.size() < needed) return;
  const bool isShared = !shared.empty() && draw(3) == 0;
  if (isShared) std::sort(shared.begin(), shared.end());
  const fs::path damaged =
      isShared ? shared[draw(shared.size())] : *std::max_element(files.begin(), files.end());
  std::string bytes = readAll(damaged);
  if (bytes.empty()) return;
  count(kDamaged);
  disksWork_ = false;
  // If both sides have a damaged checkpoint, the two may be of different steps.
  filesAreLost_ = filesAreLost_ || isShared || files.size() < 2 || counts_[kDamaged] > 1;
  switch (draw(3)) {
    case 0:
      fs::remove(damaged);
      return;
    case 1:
      bytes.resize(draw(bytes.size()));
      break;
    default:
      bytes[draw(bytes.size())] ^= static_cast<char>(1 << draw(8));
  }
  std::ofstream(damaged, std::ios::binary) << bytes;
}

// Returns whether the server and all clients have the newest checkpoint that any client has
// committed. They must have it until the run is done, unless a disk has lost a checkpoint. A cohort
// that goes on without some members continues from the newest checkpoint that the others have
// committed, which may be older; then the server must have the newest checkpoint of at least one
// client.
bool Simulation::haveNewestCommit() const {
  const auto complete = [&](const Client& each) { return isComplete(each); };
  const bool isOver = std::any_of(clients_.begin(), clients_.end(), complete);
  if (!disksWork_ || filesAreLost_ || isOver) return true;
  std::set<std::uint64_t> steps;
  for (const Client& each : clients_) {
    const auto commits = readCommits(diskFiles(), runFolder(each.node).string());
    if (!commits.empty()) steps.insert(commits.front().step);
  }
  if (steps.empty()) return true;
  const auto have = [](const fs::path& folder, std::uint64_t step) {
    const std::string name = fmt::format("{:012}.json", step);
    const fs::recursive_directory_iterator files(folder);
    return std::any_of(begin(files), end(files),
                       [&](const auto& each) { return each.path().filename() == name; });
  };
  const std::uint64_t newest = *steps.rbegin();
  const bool haveIt =
      scenario_.goesOn ? std::any_of(steps.begin(), steps.end(),
                                     [&](std::uint64_t step) { return have(store(), step); })
                       : have(store(), newest) &&
                             std::all_of(clients_.begin(), clients_.end(), [&](const Client& each) {
                               return have(runFolder(each.node), newest);
                             });
  if (!haveIt) {
    std::cerr << fmt::format("simulation: the committed checkpoint of step {} is missing\n",
                             newest);
  }
  return haveIt;
}

// ---- The run ----

// Follows the hint of the client's error, as a user would.
void Simulation::clientFailed(Client& client) {
  if (!filesAreLost_) return;
  client.fromStart = client.errorCode == "no-checkpoint" || client.errorCode == "bad-checkpoint";
  client.takeOver = client.fromStart || client.errorCode == "stale-generation";
}

bool Simulation::run() {
  std::ofstream(folder_ / "run.yaml") << kConfig << scenario_.config;
  const auto addFolder = [&](Node node) {
    fs::create_directories(folder_ / nameOf(node));
    setFolder(node, (folder_ / nameOf(node)).string());
  };
  addFolder(kServer);
  for (int i = 0; i < scenario_.clients; ++i) {
    clients_.push_back({static_cast<Node>(kClient + i)});
    addFolder(clients_.back().node);
  }
  processLog();  // created here, so that its thread belongs to no node
  startNetwork();
  // With these delays, a step takes several seconds.
  if (faults_ > 0 && draw(4) == 0) setNetworkDelay(kSecond);
  // With these, one side's part of a checkpoint takes as long as some steps.
  if (faults_ > 0 && draw(2) == 0) setSyncDelay(drawNode(), 2 * kSecond);
  if (fault_) arm(*fault_);
  startServer();
  if (faults_ > 0 && scenario_.goesOn && draw(2) == 0) {
    clients_.back().startAt = now() + static_cast<Nanoseconds>(draw(40)) * kSecond;
  }
  for (Client& client : clients_) {
    if (!client.startAt) startClient(client);
  }
  std::uint64_t left = faults_;
  int failures = 0;
  Nanoseconds nextCheck = 0;
  for (int starts = 1; starts < kMaxStarts;) {
    if (left > 0) {
      --left;
      armRandom();
    }
    const Nanoseconds until = now() + static_cast<Nanoseconds>(1 + draw(40)) * kSecond / 4;
    while (now() < until && !mustStart() && !isOver()) {
      if (now() >= nextCheck) {
        if (!haveNewestCommit()) return false;
        nextCheck = now() + kBetweenChecks;
      }
      sleep(kSecond / 50);
    }
    if (peerIsWrong_) return false;  // never happens between honest peers, whatever faults occur
    if (isOver()) return true;
    for (Client& client : clients_) {
      if (!isAway(client) || client.startAt) continue;
      client.startAt =
          now() + (scenario_.goesOn ? static_cast<Nanoseconds>(draw(20)) * kSecond : 0);
      if (!client.exitCode) continue;
      if (left == 0 && ++failures > kMaxFailures) return false;
      clientFailed(client);
    }
    if (left == 0) {
      failFiles(kServer, 0, 0, 0);
      for (const Client& client : clients_) failFiles(client.node, 0, 0, 0);
      silenceNetwork(0);
      cutNetworkAgainAndAgain(0);
    }
    if (faults_ > 0 && isAnyoneAway()) loseFiles();
    if (isServerAway()) {
      sleep(static_cast<Nanoseconds>(draw(20)) * kSecond / 10);
      startServer();
    }
    for (Client& client : clients_) {
      if (!isAway(client) || client.startAt.value_or(kNever) > now()) continue;
      client.startAt.reset();
      ++starts;
      startClient(client);
    }
  }
  return false;
}

}  // namespace cleave::sim
