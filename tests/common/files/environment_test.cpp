#include "common/files/environment.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>

#include "common/core/error.h"
#include "common/core/log.h"
#include "tests/support/files/folder.h"

using namespace cleave;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using test::Folder;
namespace fs = std::filesystem;

namespace {

std::string readFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Captures the process's stderr while it exists.
class StderrToFile {
 public:
  explicit StderrToFile(const std::string& path) : before_(::dup(STDERR_FILENO)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  ~StderrToFile() {
    flushLog();
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

// Runs a hidden test of this program. Returns its exit status, which is 0 if all checks pass.
int runHiddenTest(const std::string& name) {
  const std::string program = fs::read_symlink("/proc/self/exe");
  return std::system(("env -u OMP_WAIT_POLICY '" + program + "' '" + name + "'").c_str());
}

[[maybe_unused]] long pageFaults() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

[[maybe_unused]] void useAndFree(std::size_t bytes) {
  void* block = std::malloc(bytes);
  std::memset(block, 1, bytes);
  asm volatile("" : : "r"(block) : "memory");  // otherwise the compiler removes the allocation
  std::free(block);
}

}  // namespace

TEST_CASE("the environment lists everything that measured figures depend on") {
  const nlohmann::json environment = describeEnvironment(3);
  CHECK_THAT(environment.at("software"), Matches("cleave \\d+\\.\\d+\\.\\d+"));
  CHECK(environment.at("software") == softwareVersion());
  CHECK_THAT(environment.at("compiler"), Matches(".*\\d+\\.\\d+.*"));
  CHECK_THAT(environment.at("kernel"), Matches("Linux .+ .+"));
  CHECK_FALSE(environment.at("cpu").at("model").get<std::string>().empty());
  CHECK(environment.at("cpu").at("cores") == usableCores());
  CHECK(environment.at("cpu").at("flags").is_array());
  CHECK(environment.at("memory_bytes").get<std::uint64_t>() > (1u << 20));
  CHECK(environment.at("threads") == 3);
  CHECK(environment.at("pid") == ::getpid());
  CHECK_THAT(environment.at("started"), Matches("20.+T.+Z"));
}

#ifdef __AVX2__
TEST_CASE("the flags include the instruction sets that this program uses") {
  const auto flags = describeEnvironment(1).at("cpu").at("flags");
  CHECK(std::find(flags.begin(), flags.end(), "avx2") != flags.end());
}
#endif

TEST_CASE(
    "a side computes with all cores, or half of them if client and server share the machine") {
  CHECK(chooseThreads(8, 0, 0, false).threads == 8);
  CHECK(chooseThreads(8, 0, 0, true).threads == 4);
  CHECK(chooseThreads(1, 0, 0, true).threads == 1);
  CHECK(chooseThreads(2, 0, 0, true).text ==
        "1 of 2 cores: half, because client and server share this machine");
  CHECK(chooseThreads(2, 0, 0, false).text == "2 of 2 cores: all of them");
}

TEST_CASE("a side computes with the requested number of threads, up to its limit and its cores") {
  CHECK(chooseThreads(8, 3, 0, true).text == "3 of 8 cores: as configured");
  CHECK(chooseThreads(8, 6, 0, true).threads == 6);
  CHECK(chooseThreads(8, 6, 2, false).text == "2 of 8 cores: the maximum allowed here");
  CHECK(chooseThreads(8, 0, 2, true).threads == 2);
  CHECK(chooseThreads(8, 0, 6, true).threads == 4);
  CHECK(chooseThreads(1, 4, 0, false).text == "1 of 1 core: all of them; more were requested");
}

TEST_CASE("usable cores follow the affinity mask") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(usableCores() >= 1);
  CHECK(usableCores() <= CPU_COUNT(&before));

  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usableCores() == 1);
  ::sched_setaffinity(0, sizeof before, &before);
}

// Starts without OMP_WAIT_POLICY, so prepareProcess() re-executes the program.
TEST_CASE("hidden: prepared process", "[.]") {
  std::string program = "environment_test";
  std::string test = "hidden: prepared process";
  char* argv[] = {program.data(), test.data(), nullptr};
  prepareProcess(argv);

  // The initial environment, which libgomp reads; a variable set by setenv() would not appear here.
  std::string started = readFile("/proc/self/environ");
  CHECK_THAT(std::string(1, '\0') + started,
             Contains(std::string("\0OMP_WAIT_POLICY=passive\0", 25)));
  CHECK(readFile("/proc/self/comm") == "environment_tes\n");  // the kernel keeps 15 characters

#ifndef CLEAVE_SANITIZED  // sanitizers have their own allocator
  constexpr std::size_t kBytes = 100u << 20;
  useAndFree(kBytes);
  const long before = pageFaults();
  for (int round = 0; round < 5; ++round) useAndFree(kBytes);
  CHECK(pageFaults() - before <
        100);  // mapping the block again would cause 25,600 page faults per round
#endif
}

TEST_CASE(
    "prepareProcess() re-executes the program with passive waiting, and freed memory is kept") {
  CHECK(runHiddenTest("hidden: prepared process") == 0);
}

TEST_CASE("before startLog the process's log is written to stderr") {
  const Folder folder;
  {
    const StderrToFile redirect(folder.file("stderr"));
    processLog()->info("early");
  }
  CHECK_THAT(readFile(folder.file("stderr")), Matches("20[0-9-]+T[0-9:.]+Z info .*early\n"));
}

TEST_CASE("the process's log has UTC time, level and program, and omits lower levels") {
  const Folder folder;
  {
    const StderrToFile redirect(folder.file("stderr"));
    const auto early = processLog();
    startLog("cleave-100%v", "warn");
    early->info("hidden");
    processLog()->warn("seen {}", 7);
    flushLog();
    startLog("cleave-test", "info");
  }
  CHECK_THAT(readFile(folder.file("stderr")),
             Matches("20[0-9-]+T[0-9:]+\\.[0-9]{3}Z warning cleave-100%v: seen 7\n"));
}

TEST_CASE("a run's line is written to the run's file, and with a prefix to the process's log") {
  const Folder folder;
  {
    const StderrToFile redirect(folder.file("stderr"));
    startLog("cleave-test", "info");
    const auto log = runLog(folder.file("log.txt"), "[run-1] ");
    log->info("step {}", 5);
    log->debug("below the level");
    flushLog();
    CHECK_THAT(readFile(folder.file("log.txt")), Matches("20[0-9-]+T[0-9:.]+Z info step 5\n"));
    CHECK_THAT(readFile(folder.file("stderr")),
               Matches("20[0-9-]+T[0-9:.]+Z info cleave-test: \\[run-1\\] step 5\n"));
  }
  {
    const StderrToFile redirect(folder.file("stderr"));
    runLog(folder.file("log.txt"), "")->info("resumed");
  }
  CHECK_THAT(readFile(folder.file("log.txt")), Contains("step 5\n") && Contains("resumed\n"));
}

TEST_CASE("a line of the log stays one line, and controls no terminal") {
  const Folder folder;
  {
    const StderrToFile redirect(folder.file("stderr"));
    startLog("cleave-test", "info");
    runLog(folder.file("log.txt"), "")->info("the column '{}'", "a\x1b[2J\r\nfake\xc2\x9b");
    flushLog();
  }
  const std::string shown = "the column 'a\\u001b[2J\\u000d fake\\u009b'\n";
  for (const char* file : {"log.txt", "stderr"}) {
    CHECK_THAT(readFile(folder.file(file)), Catch::EndsWith(shown));
  }
}

TEST_CASE("a flood of lines blocks neither the logging thread nor flushLog()") {
  const Folder folder;
  const StderrToFile redirect(folder.file("stderr"));
  const auto log = runLog(folder.file("log.txt"), "");
  std::promise<void> flushed;
  std::thread flood([&, done = flushed.get_future()] {
    while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) log->info("x");
  });
  flushLog();
  flushed.set_value();
  flood.join();
  log->info("last");
  flushLog();
  CHECK_THAT(readFile(folder.file("log.txt")), Catch::EndsWith("last\n"));
}

TEST_CASE("unknown levels and files that cannot be opened are refused") {
  CHECK_THROWS_WITH(startLog("a", "inof"), "'inof' is not a log level; did you mean info?");
  for (const char* level : {"", "off", "critical", "INFO", "warning"}) {
    CHECK_THROWS_AS(startLog("a", level), UsageError);
  }
  const Folder folder;
  CHECK_THROWS_AS(runLog(folder.path, ""), RunError);
}
