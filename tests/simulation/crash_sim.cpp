// Simulated runs of the real client and the real server, with faults: killed processes, machines
// without power, cut and silent links, damaged bytes, full and failing disks, shifted clocks,
// damaged checkpoints. Each run must end with the weights of an undisturbed one. See world.h.
//
// A seed determines a run: `crash_sim --seed 17 --runs 1 --verbose` repeats it.
#include <fcntl.h>
#include <openssl/sha.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/commands/commands.h"
#include "common/core/config.h"
#include "common/core/log.h"
#include "common/program/program.h"
#include "common/run/device.h"
#include "server/server.h"
#include "server/settings.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cleave::sim {
namespace {

namespace fs = std::filesystem;

// Everything that has a state: dropout, batch statistics, Adam or momentum, a codec with a power
// iteration. A run takes 24 steps.
constexpr std::array<const char*, 2> kConfigs = {
    R"(
run: {name: crash}
model: {name: mlp, width: 8, depth: 2, dropout: 0.1}
data: {format: synthetic, shape: [1, 4, 4], classes: 4, train: {size: 64}, test: {size: 16}}
train: {batch: 8, micro_batches: 2, epochs: 3, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 8}
codec: {activation/0: "power:rank=2", activation/1: "block:bits=8", gradient/1: "power:rank=2", gradient/0: "block:bits=8"}
checkpoint: {every_steps: 4}
threads: {client: 1, server: 1}
connect: {retry_seconds: 30, reconnect_seconds: 120}
)",
    R"(
run: {name: crash}
model: {name: small_cnn, width: 4}
data: {format: synthetic, shape: [1, 8, 8], classes: 4, train: {size: 48}, test: {size: 8}}
train: {batch: 6, micro_batches: 3, epochs: 3, optimizer: {name: sgd, momentum: 0.9}, learning_rate: {schedule: constant, peak: 0.05}}
eval: {batch: 8}
codec: "block:bits=4"
checkpoint: {every_steps: 3, keep: 3}
threads: {client: 1, server: 1}
connect: {retry_seconds: 30, reconnect_seconds: 120}
)"};
constexpr int kMaxStarts = 60;

std::string readAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- One run, in a process of its own ----

class Simulation {
 public:
  Simulation(fs::path folder, std::size_t config, std::uint64_t faults, std::string logLevel)
      : folder_(std::move(folder)),
        config_(config),
        faults_(faults),
        logLevel_(std::move(logLevel)) {}

  // Returns whether the run ended with exit code 0.
  bool run() {
    fs::create_directories(folder_ / "client");
    fs::create_directories(folder_ / "server");
    std::ofstream(folder_ / "run.yaml") << kConfigs[config_];
    setFolder(kClient, (folder_ / "client").string());
    setFolder(kServer, (folder_ / "server").string());
    processLog();  // its thread belongs to no node
    startNetwork();
    startServer();
    startClient();
    std::uint64_t left = faults_;
    int starts = 1;
    while (true) {
      if (left > 0) {
        --left;
        arm();
      }
      const Nanoseconds until = now() + static_cast<Nanoseconds>(1 + draw(40)) * kSecond / 4;
      while (now() < until && isAlive(kClient) && isAlive(kServer) && !exitCode_)
        sleep(kSecond / 50);
      if (exitCode_ && (*exitCode_ == 0 || isDone())) {
        return true;
      }
      if (!isAlive(kServer) || serverEnded_) {
        sleep(static_cast<Nanoseconds>(draw(20)) * kSecond / 10);
        if (isAlive(kClient) || draw(2) == 0) startServer();
      }
      if (!isAlive(kClient) || exitCode_) {
        if (++starts > kMaxStarts) return false;
        if (exitCode_) {
          ++failures_;
          if (left == 0 && ++lastFailures_ > 3) return false;
        }
        if (!isAlive(kServer)) startServer();
        if (left == 0) healDisks();
        if (draw(8) == 0) damageCheckpoint(kClient);
        startClient();
      }
    }
  }

  std::string summary() const {
    std::ostringstream text;
    for (const auto& [name, count] : counts_) text << ", " << count << " x " << name;
    return text.str();
  }

 private:
  fs::path runFolder() const { return folder_ / "client" / "run"; }
  bool isDone() const {
    return fs::exists(runFolder() / "summary.json") &&
           fs::exists(runFolder() / "model.safetensors");
  }

  void startServer() {
    serverEnded_ = false;
    // The file of the store must survive the server.
    start(kServer, [this] {
      try {
        const std::string store = (folder_ / "server" / "store").string();
        Config config = Config::parse(
            "", "simulation",
            {"listen.port=" + std::to_string(kPortOfServer), "store=" + store, "threads=1"});
        const ServerSettings settings = readServerSettings(config);
        Server server(settings, openDevice("cpu"), nullptr);
        server.run();
      } catch (const std::exception& error) {
        std::cerr << "server: " << error.what() << "\n";
      }
      serverEnded_ = true;
    });
  }

  void startClient() {
    exitCode_.reset();
    start(kClient, [this] {
      TrainOptions options;
      options.quiet = true;
      options.run.common.logLevel = logLevel_;
      options.run.server = "127.0.0.1:" + std::to_string(kPortOfNetwork);
      if (fs::exists(runFolder() / "run.json")) {
        options.run.resume = runFolder().string();
      } else {
        fs::remove_all(runFolder());
        options.run.common.config = (folder_ / "run.yaml").string();
        options.run.runDir = runFolder().string();
      }
      int code = 0;
      try {
        code = trainCommand(options);
      } catch (...) {
        code = reportError("cleave-client", std::current_exception());
      }
      exitCode_ = code;
    });
  }

  static void healDisks() {
    failFiles(kClient, 0, 0, 0);
    failFiles(kServer, 0, 0, 0);
  }

  void count(const std::string& name) {
    ++counts_[name];
    std::cerr << "simulation: " << now() / (kSecond / 1000) << " ms: " << name << "\n";
  }

  // Prepares one fault.
  void arm() {
    const std::uint64_t soon = switches() + draw(6000);
    switch (draw(10)) {
      case 0:
        count("client killed");
        return killAt(kClient, soon, false);
      case 1:
        count("server killed");
        return killAt(kServer, soon, false);
      case 2:
        count("both killed");
        killAt(kClient, soon, false);
        return killAt(kServer, soon + draw(50), false);
      case 3:
        count("client without power");
        return killAt(kClient, soon, true);
      case 4:
        count("server without power");
        return killAt(kServer, soon, true);
      case 5:
      case 6:
        count("link cut");
        return cutNetworkAfter(draw(20'000));
      case 7:
        count("link silent");
        return silenceNetwork(now() + static_cast<Nanoseconds>(draw(60)) * kSecond);
      case 8: {
        count("disk fails");
        const Node node = draw(2) == 0 ? kClient : kServer;
        const std::uint64_t length = draw(2) == 0 ? 1 : 1 + draw(30);
        return failFiles(node, fileCalls(node) + draw(60), length, draw(2) == 0 ? ENOSPC : EIO);
      }
      default:
        count("clock shifted");
        return shiftWallClock((static_cast<Nanoseconds>(draw(200)) - 100) * 600 * kSecond);
    }
  }

  // The newest checkpoint of one side: a changed or a missing byte, or a missing file.
  void damageCheckpoint(Node node) {
    std::vector<fs::path> files;
    for (const auto& each :
         fs::recursive_directory_iterator(folder_ / (node == kClient ? "client" : "server"))) {
      if (each.path().extension() == ".safetensors" &&
          each.path().parent_path().filename() == "checkpoints") {
        files.push_back(each.path());
      }
    }
    if (files.size() < 2) return;
    const fs::path newest = *std::max_element(files.begin(), files.end());
    count("checkpoint damaged");
    std::string bytes = readAll(newest);
    if (bytes.empty()) return;
    switch (draw(3)) {
      case 0:
        fs::remove(newest);
        return;
      case 1:
        bytes.resize(draw(bytes.size()));
        break;
      default:
        bytes[draw(bytes.size())] ^= static_cast<char>(1 << draw(8));
    }
    std::ofstream(newest, std::ios::binary) << bytes;
  }

  const fs::path folder_;
  const std::size_t config_;
  const std::uint64_t faults_;
  const std::string logLevel_;
  std::optional<int> exitCode_;
  bool serverEnded_ = false;
  int failures_ = 0, lastFailures_ = 0;
  std::map<std::string, int> counts_;
};

// ---- Many runs ----

std::string digestOf(const fs::path& folder) {
  const std::string model = readAll(folder / "client" / "run" / "model.safetensors");
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(model.data()), model.size(), digest.data());
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return model.empty() ? "" : text;
}

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t runs = 100;
  unsigned jobs = 2;
  bool verbose = false;
  std::string folder = "/dev/shm";
};

// Never returns.
[[noreturn]] void runChild(const fs::path& folder, std::uint64_t seed, std::uint64_t faults,
                           bool verbose) {
  fs::create_directories(folder);
  // One thread runs at a time; switches within a core take least.
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(seed % std::max(1u, std::thread::hardware_concurrency()), &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
  if (!verbose) {
    const int log = ::open((folder / "log.txt").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(log, STDERR_FILENO);
    ::dup2(log, STDOUT_FILENO);
  }
  begin(seed);
  Simulation simulation(folder, seed % kConfigs.size(), faults, verbose ? "debug" : "info");
  const bool good = simulation.run();
  std::ofstream(folder / "faults.txt") << simulation.summary();
  std::cerr << "simulation: " << switches() << " switches, " << now() / kSecond << " s, "
            << networkBytes() << " bytes" << std::endl;
  ::_exit(good ? 0 : 1);
}

struct Child {
  std::uint64_t number = 0;
  fs::path folder;
};

int runAll(const Options& options) {
  const fs::path root = fs::path(options.folder) / fmt::format("cleave-simulation-{}", ::getpid());
  fs::create_directories(root);
  const auto begun = std::chrono::steady_clock::now();
  std::array<std::string, kConfigs.size()> expected;
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    const fs::path folder = root / fmt::format("whole{}", i);
    const pid_t child = ::fork();
    if (child == 0) runChild(folder, i, 0, false);
    int status = 0;
    ::waitpid(child, &status, 0);
    expected[i] = digestOf(folder);
    if (status != 0 || expected[i].empty()) {
      std::cerr << "crash_sim: the undisturbed run failed (" << status << "); see "
                << folder.string() << "/log.txt\n";
      return 1;
    }
  }
  std::map<pid_t, Child> running;
  std::uint64_t faults = 0;
  std::uint64_t failed = 0;
  std::uint64_t started = 0;
  const auto waitForOne = [&] {
    int status = 0;
    const pid_t pid = ::wait(&status);
    const auto found = running.find(pid);
    if (found == running.end()) return;
    const Child child = found->second;
    running.erase(found);
    const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool same = ended && digestOf(child.folder) == expected[child.number % kConfigs.size()];
    const std::string what = readAll(child.folder / "faults.txt");
    faults += static_cast<std::uint64_t>(std::count(what.begin(), what.end(), 'x'));
    if (same) {
      fs::remove_all(child.folder);
      return;
    }
    ++failed;
    std::cerr << fmt::format("crash_sim: seed {}: {}{}; its files: {}\n", child.number,
                             !ended ? fmt::format("failed ({})", status) : "has other weights",
                             what, child.folder.string());
  };
  for (std::uint64_t i = 0; i < options.runs; ++i) {
    if (running.size() >= options.jobs) waitForOne();
    const std::uint64_t seed = options.seed + i;
    const fs::path folder = root / std::to_string(seed);
    const pid_t pid = ::fork();
    if (pid == 0) runChild(folder, seed, 1 + seed % 7, options.verbose);
    running[pid] = {seed, folder};
    ++started;
  }
  while (!running.empty()) waitForOne();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::cout << fmt::format("crash_sim: {} runs, {} failed ({:.0f} s)\n", started, failed, seconds);
  if (failed == 0) fs::remove_all(root);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cleave::sim

int main(int argc, char** argv) {
  cleave::sim::Options options;
  CLI::App app{"Simulates runs of client and server with faults, and compares their weights.",
               "crash_sim"};
  app.add_option("--seed", options.seed, "Seed of the first run; the others have the next ones")
      ->default_str("1");
  app.add_option("--runs", options.runs, "Number of runs")->default_str("100");
  app.add_option("--jobs", options.jobs, "Runs at the same time")->default_str("2");
  app.add_option("--folder", options.folder, "Where to make files")->default_str("/dev/shm");
  app.add_flag("--verbose", options.verbose, "Shows the logs of client and server");
  CLI11_PARSE(app, argc, argv);
  return cleave::sim::runAll(options);
}
