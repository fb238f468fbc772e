// Tests the class Process (daemon/process.h) with /bin/sh.
#include "tests/daemon/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>

namespace cleave::test {
namespace {

using namespace std::chrono_literals;

// The events normally happen immediately; the timeout only ends a failed test.
constexpr auto kPatience = 30s;

Process shell(const std::string& script,
              const std::map<std::string, std::string>& environment = {}) {
  return Process::start({"/bin/sh", "-c", script}, environment);
}

// Waits for a descendant that this process did not start; returns its wait status.
int reapOrphan(pid_t pid) {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return status;
}

TEST_CASE("stdout and stderr are captured separately, and the exit code follows both") {
  const Process process = shell("echo out; echo err >&2; echo more; exit 7");
  REQUIRE(process.wait(kPatience) == 7);
  CHECK(process.output() == "out\nmore\n");
  CHECK(process.errors() == "err\n");
  CHECK(process.wait(0ms) == 7);  // may be called repeatedly
}

TEST_CASE("a large output does not block the process, and no byte is lost") {
  const Process process = shell("head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2");
  REQUIRE(process.wait(kPatience) == 0);
  CHECK((process.output() == std::string(5000000, '\0')));  // too long to print
  CHECK((process.errors() == std::string(3000000, '\0')));
}

TEST_CASE("waiting for output returns when the text appears on either stream") {
  Process process = shell("echo ready; echo warned >&2; exec sleep 60");
  CHECK(process.waitForOutput("ready\n", kPatience));
  CHECK(process.waitForOutput("warned\n", kPatience));
  CHECK(process.waitForOutput("ready\n", 0ms));  // earlier output counts too
  CHECK_FALSE(process.waitForOutput("absent", 20ms));
  CHECK_FALSE(process.wait(20ms).has_value());
}

TEST_CASE("waiting for output ends early if no more output is possible") {
  const Process process = shell("echo done");
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(process.waitForOutput("absent", kPatience));
  CHECK(std::chrono::steady_clock::now() - start < kPatience);
}

TEST_CASE("a signal reaches the process") {
  Process process =
      shell("trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  REQUIRE(process.waitForOutput("ready", kPatience));
  process.signal(SIGTERM);
  CHECK(process.wait(kPatience) == 3);
  CHECK(process.output() == "ready\ncaught\n");
}

TEST_CASE("a process killed by a signal has the exit code 128 + the signal") {
  Process process = shell("exec sleep 60");
  process.signal(SIGKILL);
  CHECK(process.wait(kPatience) == 128 + SIGKILL);
  process.signal(SIGTERM);  // no effect on an exited process
}

TEST_CASE("the environment is inherited, and variables can be overridden by name") {
  setenv("CLEAVE_TEST_KEPT", "kept", 1);
  setenv("CLEAVE_TEST_CHANGED", "old", 1);
  const Process process = shell("echo $CLEAVE_TEST_KEPT $CLEAVE_TEST_CHANGED $CLEAVE_TEST_NEW",
                                {{"CLEAVE_TEST_CHANGED", "new=1"}, {"CLEAVE_TEST_NEW", "added"}});
  REQUIRE(process.wait(kPatience) == 0);
  CHECK(process.output() == "kept new=1 added\n");
}

TEST_CASE("standard input is empty, and no other file is inherited") {
  const int leaking = open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  const Process process = shell("cat; ls /proc/self/fd | wc -l");
  close(leaking);
  REQUIRE(process.wait(kPatience) == 0);
  CHECK(process.output() == "4\n");  // descriptors 0, 1, 2, and that of the folder that ls reads
}

TEST_CASE("a missing program is reported as such") {
  try {
    Process::start({"/nowhere/program"});
    FAIL("nothing was thrown");
  } catch (const std::system_error& error) {
    CHECK(error.code() == std::errc::no_such_file_or_directory);
    CHECK_THAT(error.what(), Catch::StartsWith("/nowhere/program cannot be started"));
  }
  CHECK_THROWS_AS(Process::start({}), std::system_error);
}

TEST_CASE("a process continues when its object is moved") {
  Process first = shell("echo hello; exec sleep 60");
  Process second = std::move(first);
  CHECK(second.waitForOutput("hello", kPatience));
  second.signal(SIGKILL);
  CHECK(second.wait(kPatience) == 128 + SIGKILL);
}

TEST_CASE("destruction kills the process and its children, and reaps it") {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans become this process's children
  pid_t pid = 0;
  pid_t child = 0;
  {
    const Process process = shell("trap '' TERM; sleep 60 & echo $!; echo ready; wait");
    REQUIRE(process.waitForOutput("ready", kPatience));
    pid = process.pid();
    child = std::stoi(process.output());
  }
  CHECK(kill(pid, 0) == -1);
  CHECK(errno == ESRCH);
  CHECK(WTERMSIG(reapOrphan(child)) == SIGKILL);
}

TEST_CASE("starts a process and waits to be killed", "[.][middle]") {
  const Process process = shell("exec sleep 60");
  std::cout << "process " << process.pid() << " is running" << std::endl;
  process.wait(kPatience);
}

TEST_CASE("a process dies with the one that started it") {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Process middle = Process::start({std::filesystem::read_symlink("/proc/self/exe"), "[middle]"});
  REQUIRE(middle.waitForOutput(" is running\n", kPatience));
  const pid_t orphan = std::stoi(middle.output().substr(middle.output().find("process ") + 8));
  middle.signal(SIGKILL);
  CHECK(middle.wait(kPatience) == 128 + SIGKILL);
  CHECK(WTERMSIG(reapOrphan(orphan)) == SIGKILL);
}

}  // namespace
}  // namespace cleave::test
