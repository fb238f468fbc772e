// Simulated runs of the real client, or the members of a cohort, and the real server, with faults:
// killed processes, machines that lose power, cut and silent links, full and failing disks, shifted
// clocks, damaged, lost and restored files. Each run must end with the results of an undisturbed
// one, or, if a cohort has gone on without a member, with those of one process that has the data of
// all. See world.h.
//
// A seed determines a run. For each failed run, the command that repeats it is printed.
#include <fcntl.h>
#include <openssl/rand.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "client/evaluate/replay.h"
#include "common/run/self_check.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/world.h"
#include "tests/support/network/certificates.h"

namespace cleave::sim {
namespace {

namespace fs = std::filesystem;

constexpr int kNoSimulation = 2;       // exit code: the simulation itself does not work
constexpr double kReportSeconds = 30;  // between two reports of progress
constexpr Nanoseconds kWallClock = 1'767'225'600 * kSecond;  // when each run begins: 2026-01-01

// Starts a world in which OpenSSL's random numbers are also drawn from the seed. Otherwise the
// lengths of signatures, and so the number of bytes sent, would differ from run to run.
void beginWorld(std::uint64_t seed) {
  begin(seed, kWallClock);
  const auto fill = [](unsigned char* bytes, int count) {
    for (int i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(draw(256));
    return 1;
  };
  static const RAND_METHOD kMethod = {nullptr, fill, nullptr, nullptr, fill, [] { return 1; }};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // a provider would take a page of code
  RAND_set_rand_method(&kMethod);
#pragma GCC diagnostic pop
}

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t runs = 100;
  bool matrix = false;
  std::uint64_t every = 1;
  std::string only;  // run only the matrix's jobs whose text contains this
  unsigned jobs = 2;
  bool verbose = false;
  bool keep = false;
  bool stop = false;
  std::string folder = "/dev/shm";
};

// A run to simulate.
struct Job {
  std::uint64_t seed = 0;
  std::size_t scenario = 0;
  std::uint64_t faults = 0;
  std::optional<Fault> fault;
  std::string text() const {
    return fault ? fmt::format("scenario {}, {}", scenario, fault->text())
                 : fmt::format("seed {}", seed);
  }
  // The command that repeats the run.
  std::string command() const {
    return "crash_sim --verbose " + (fault ? fmt::format("--matrix --only \"{}\"", text())
                                           : fmt::format("--runs 1 --seed {}", seed));
  }
};

// The counts and the results of an undisturbed run.
struct Whole {
  std::vector<std::string> results;      // of each client
  std::vector<std::uint64_t> fileCalls;  // of each node
  std::uint64_t bytes = 0, switches = 0, frames = 0;
  std::vector<std::uint64_t> framesAtSteps;  // see network.h
};

class Runs {
 public:
  explicit Runs(const Options& options)
      : options_(options),
        root_(fs::path(options.folder) / fmt::format("cleave-simulation-{}", ::getpid())) {}

  int run() {
    if (!makeCertificates()) return kNoSimulation;
    machineSpeed(1);  // all runs inherit the result; measuring would take longer than a run
    const auto begun = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < scenarios().size(); ++i) {
      const auto whole = runWhole(i);
      if (!whole) return 1;
      wholes_.push_back(*whole);
    }
    for (std::size_t i = 0; i < scenarios().size(); ++i) {
      if (!isRepeatable(i)) return kNoSimulation;
    }
    const std::vector<Job> jobs = options_.matrix ? matrix() : randomJobs();
    if (jobs.empty()) {
      std::cerr << "crash_sim: no run has the text of --only\n";
      return kNoSimulation;
    }
    const auto seconds = [begun] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    };
    double reportAt = seconds() + kReportSeconds;
    for (const Job& job : jobs) {
      if (running_.size() >= options_.jobs) waitForOne();
      if (failed_ > 0 && options_.stop) break;
      start(job);
      if (seconds() < reportAt) continue;
      reportAt = seconds() + kReportSeconds;
      const double perRun = seconds() / static_cast<double>(started_);
      std::cerr << fmt::format("crash_sim: {} of {} runs, {} failed; about {:.0f} min left\n",
                               started_, jobs.size(), failed_,
                               perRun * static_cast<double>(jobs.size() - started_) / 60);
    }
    while (!running_.empty()) waitForOne();
    std::cout << fmt::format("crash_sim: {} runs with {} faults: {} failed ({:.0f} s)\n", started_,
                             faults_, failed_, seconds());
    if (failed_ == 0 && !options_.keep) fs::remove_all(root_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  // Returns whether the task returns true in a child process. This process must have neither
  // threads nor a world: a process can have only one.
  static bool inChild(const std::function<bool()>& task) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(task() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status == 0;
  }

  bool makeCertificates() const {
    return inChild([this] {
      beginWorld(0);
      const fs::path folder = root_ / "certificates";
      for (const char* side : {"server", "client"}) fs::create_directories(folder / side);
      const test::TestAuthority authority;
      authority.writeServer(folder / "server");
      authority.write(folder / "client", "client", test::clientRequest());
      return true;
    });
  }

  struct Child {
    Job job;
    fs::path folder;
    unsigned slot = 0;  // of the runs at the same time; decides the core
  };

  std::vector<Job> randomJobs() const {
    std::vector<Job> jobs;
    for (std::uint64_t i = 0; i < options_.runs; ++i) {
      const std::uint64_t seed = options_.seed + i;
      jobs.push_back({seed, seed % scenarios().size(), 1 + seed / scenarios().size() % 8, {}});
    }
    return jobs;
  }

  // Jobs with one fault per run, at each place: at each change of a file, at evenly spaced thread
  // switches, after evenly spaced numbers of bytes on the network, and after each frame of three
  // steps.
  std::vector<Job> matrix() const {
    constexpr std::uint64_t kSwitches = 150, kCuts = 200;
    using Kind = Fault::Kind;
    std::vector<Job> jobs;
    for (std::size_t i = 0; i < wholes_.size(); ++i) {
      const Whole& whole = wholes_[i];
      const auto add = [&](Kind kind, Node node, std::uint64_t at) {
        jobs.push_back({jobs.size(), i, 0, Fault{kind, node, at}});
      };
      for (const Node node : nodesOf(scenarios()[i])) {
        for (std::uint64_t call = 1; call <= whole.fileCalls[node]; ++call) {
          for (const Kind kind : {Kind::kill, Kind::losePower, Kind::killAll}) {
            add(kind, node, call);
          }
          // One of the two errors, because the programs handle them alike.
          add(call % 2 == 0 ? Kind::fullDisk : Kind::badDisk, node, call);
        }
      }
      for (std::uint64_t k = 0; k < kSwitches; ++k) {
        const std::uint64_t at = 1 + k * whole.switches / kSwitches;
        for (const Node node : nodesOf(scenarios()[i])) add(Kind::killAfterSwitches, node, at);
        add(Kind::killAllAfterSwitches, kDirector, at);
      }
      for (std::uint64_t k = 0; k < kCuts; ++k) {
        add(Kind::cutAfterBytes, kDirector, 1 + k * whole.bytes / kCuts);
      }
      for (const std::uint64_t frame : framesOfThreeSteps(whole)) {
        add(Kind::cutAfterFrames, kDirector, frame);
      }
    }
    std::vector<Job> sample;
    for (std::size_t i = options_.seed % options_.every; i < jobs.size(); i += options_.every) {
      if (jobs[i].text().find(options_.only) != std::string::npos) sample.push_back(jobs[i]);
    }
    return sample;
  }

  // The server and the clients.
  static std::vector<Node> nodesOf(const Scenario& scenario) {
    std::vector<Node> nodes;
    for (int node = kServer; node < kClient + scenario.clients; ++node) {
      nodes.push_back(static_cast<Node>(node));
    }
    return nodes;
  }

  // The run folder of each client, in a simulation's folder.
  static std::vector<std::string> runsIn(const fs::path& folder, const Scenario& scenario) {
    std::vector<std::string> runs;
    for (const Node node : nodesOf(scenario)) {
      if (node >= kClient) runs.push_back(runFolderOf(folder, node));
    }
    return runs;
  }
  static std::vector<std::string> resultsIn(const fs::path& folder, const Scenario& scenario) {
    std::vector<std::string> results;
    for (const std::string& run : runsIn(folder, scenario)) results.push_back(resultOf(run));
    return results;
  }

  // The numbers of the frames of the first step with the handshake, of a middle step after which
  // both make a checkpoint, and of the last step with the end of the run. With TLS, none.
  static std::vector<std::uint64_t> framesOfThreeSteps(const Whole& whole) {
    constexpr std::size_t kMiddle = 12;
    const std::vector<std::uint64_t>& at = whole.framesAtSteps;
    std::vector<std::uint64_t> frames;
    const auto add = [&](std::uint64_t after, std::uint64_t last) {
      for (std::uint64_t frame = after + 1; frame <= last; ++frame) frames.push_back(frame);
    };
    if (at.size() <= kMiddle + 1) return frames;
    add(0, at.front());
    add(at[kMiddle - 1], at[kMiddle]);
    add(at[at.size() - 2], whole.frames);
    return frames;
  }

  // Runs in the child process. Never returns.
  [[noreturn]] void runChild(const fs::path& folder, const Job& job, unsigned slot) const {
    fs::create_directories(folder);
    // Only one thread runs at a time, and thread switches on the same core are the cheapest.
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(slot % std::max(1u, std::thread::hardware_concurrency()), &cores);
    ::sched_setaffinity(0, sizeof cores, &cores);
    if (!options_.verbose) {
      const int log = ::open((folder / "log.txt").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(log, STDERR_FILENO);
      ::dup2(log, STDOUT_FILENO);
    }
    beginWorld(job.seed);
    bool good = false;
    Simulation simulation(folder, scenarios()[job.scenario], root_ / "certificates", job.faults,
                          job.fault, options_.verbose ? "debug" : "info");
    try {
      good = simulation.run();
    } catch (const std::exception& error) {
      std::cerr << "simulation: " << error.what() << "\n";
    }
    std::ofstream(folder / "faults.txt") << simulation.summary();
    std::ofstream figures(folder / "figures.txt");
    for (int node = 0; node < kNodes; ++node) figures << fileCalls(static_cast<Node>(node)) << " ";
    figures << networkBytes() << " " << switches() << " " << networkFrames() << " " << now() << "\n"
            << fmt::format("{}\n", fmt::join(framesAtSteps(), " "));
    figures.flush();
    ::_exit(good ? 0 : 1);
  }

  pid_t forkChild(const fs::path& folder, const Job& job, unsigned slot = 0) const {
    const pid_t child = ::fork();
    if (child == 0) runChild(folder, job, slot);
    return child;
  }

  // Returns whether one process that has the data of all members computes the same model.
  static bool isReplayed(const fs::path& folder, const Scenario& scenario) {
    return inChild([&] {
      try {
        return replayRun(runsIn(folder, scenario)).weights.equal;
      } catch (const std::exception& error) {
        std::cerr << "replay: " << error.what() << "\n";
        return false;
      }
    });
  }

  // A client whose cohort was done without it has no result.
  static bool isGood(const fs::path& folder, const Scenario& scenario, const Whole& whole) {
    const std::vector<std::string> results = resultsIn(folder, scenario);
    bool hasOne = false;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].empty()) continue;
      hasOne = true;
      if (!scenario.goesOn && results[i] != whole.results[i]) return false;
    }
    return hasOne && (!scenario.goesOn || isReplayed(folder, scenario));
  }

  // Returns the child's exit status.
  int runToEnd(const fs::path& folder, const Job& job) const {
    int status = 0;
    ::waitpid(forkChild(folder, job), &status, 0);
    return status;
  }

  std::optional<Whole> runWhole(std::size_t scenario) {
    const fs::path folder = root_ / fmt::format("whole{}", scenario);
    const int status = runToEnd(folder, {0, scenario, 0, {}});
    Whole whole;
    whole.results = resultsIn(folder, scenarios()[scenario]);
    std::ifstream figures(folder / "figures.txt");
    Nanoseconds time = 0;
    whole.fileCalls.resize(kNodes);
    for (std::uint64_t& calls : whole.fileCalls) figures >> calls;
    figures >> whole.bytes >> whole.switches >> whole.frames >> time;
    for (std::uint64_t frames = 0; figures >> frames;) whole.framesAtSteps.push_back(frames);
    const bool isComplete = std::ranges::find(whole.results, "") == whole.results.end();
    if (status == 0 && isComplete) return whole;
    std::cerr << fmt::format(
        "crash_sim: the undisturbed run of scenario {} failed ({}); its files: {}\n",
        scenarios()[scenario].name, status, folder.string());
    return std::nullopt;
  }

  // Runs one seed twice, even if it fails, and compares the numbers of file changes, bytes, frames
  // and thread switches, and the time.
  bool isRepeatable(std::size_t scenario) const {
    std::vector<std::string> figures;
    for (int i = 0; i < 2; ++i) {
      const fs::path folder = root_ / "twice";
      fs::remove_all(folder);
      runToEnd(folder, {options_.seed, scenario, 3, {}});
      figures.push_back(readAll(folder / "figures.txt"));
    }
    if (figures[0] == figures[1] && !figures[0].empty()) return true;
    std::cerr << fmt::format("crash_sim: two runs of scenario {} with seed {} differ: {} and {}\n",
                             scenario, options_.seed, figures[0], figures[1]);
    return false;
  }

  void start(const Job& job) {
    const fs::path folder = root_ / std::to_string(job.seed);
    unsigned slot = 0;
    const auto isTaken = [&](const auto& child) { return child.second.slot == slot; };
    while (std::any_of(running_.begin(), running_.end(), isTaken)) ++slot;
    running_[forkChild(folder, job, slot)] = {job, folder, slot};
    ++started_;
  }

  void waitForOne() {
    int status = 0;
    const pid_t pid = ::wait(&status);
    const auto found = running_.find(pid);
    if (found == running_.end()) return;
    const Child child = found->second;
    running_.erase(found);
    const std::string what = readAll(child.folder / "faults.txt");
    faults_ += static_cast<std::uint64_t>(std::count(what.begin(), what.end(), ','));
    const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const std::size_t scenario = child.job.scenario;
    if (ended && isGood(child.folder, scenarios()[scenario], wholes_[scenario])) {
      if (!options_.keep) fs::remove_all(child.folder);
      return;
    }
    ++failed_;
    std::cerr << fmt::format("crash_sim: {}: {}{}; its files: {}\n  to repeat it: {}\n",
                             child.job.text(),
                             !ended ? fmt::format("failed ({})", status) : "gave different results",
                             what, child.folder.string(), child.job.command());
  }

  const Options options_;
  const fs::path root_;
  std::vector<Whole> wholes_;
  std::map<pid_t, Child> running_;
  std::uint64_t started_ = 0, faults_ = 0, failed_ = 0;
};

}  // namespace
}  // namespace cleave::sim

int main(int argc, char** argv) {
  cleave::sim::Options options;
  CLI::App app{"Simulates runs of client and server with faults, and compares their results.",
               "crash_sim"};
  app.add_option("--seed", options.seed,
                 "Seed of the first run; further runs use consecutive seeds")
      ->default_str("1");
  app.add_option("--runs", options.runs, "Number of runs with random faults")->default_str("100");
  app.add_flag("--matrix", options.matrix,
               "Instead of random faults: one run per place at which a fault can happen");
  app.add_option("--every", options.every, "With --matrix: only every N-th run")
      ->default_str("1")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", options.only,
                 "With --matrix: only the runs whose description, as printed for failures, has "
                 "this text");
  app.add_option("--jobs", options.jobs, "Runs at the same time")
      ->default_str("2")
      ->check(CLI::PositiveNumber);
  app.add_option("--folder", options.folder, "Folder for temporary files")->default_str("/dev/shm");
  app.add_flag("--keep", options.keep, "Keeps the files of all runs");
  app.add_flag("--stop", options.stop, "Starts no more runs after one has failed");
  app.add_flag("--verbose", options.verbose, "Shows the logs of client and server");
  app.footer(
      "Examples:\n  crash_sim --seed 17 --runs 1 --verbose\n"
      "  crash_sim --matrix --only 'scenario 0, client killed'\n\nExit code 1 if a run did not "
      "finish or gave different results; 2 if no run was chosen or the simulation itself does not "
      "work.");
  CLI11_PARSE(app, argc, argv);
  return cleave::sim::Runs(options).run();
}
