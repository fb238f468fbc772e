// Each failure produces an error, ends in time, and leaves complete files. All faults are provoked
// with the real programs.
#include <csignal>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/daemon/mistakes.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST_CASE("killing the server during a run ends the client within 5 s, with complete files") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process client = startSlowClient(folder.path("client"), server.address(),
                                         {"--set", "connect.reconnect_seconds=0"});
  waitForSteps(folder.path("client"));
  server.process().signal(SIGKILL);
  const auto start = steady_clock::now();
  const Ended ended = finish(client);
  CHECK(steady_clock::now() - start < seconds(5));
  checkError(ended, kFailedRun, {server.address(), "that it is a Cleave program"});
  checkFilesComplete(folder.path("client"));
}

TEST_CASE("killing a client ends its session, and the server accepts the next client") {
  const TemporaryFolder folder;
  TestServer server(folder);
  Process client = startSlowClient(folder.path("client"), server.address());
  waitForSteps(folder.path("client"));
  client.signal(SIGKILL);
  finish(client);
  CHECK(server.process().waitForOutput("ended: ", kPatience));
  CHECK(runClient("train", folder.path("next"), {"--server", server.address()}).code == 0);
}

// The cleave-server that this client has started.
pid_t serverOf(const Process& client) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    pid_t process = 0, parent = 0;
    std::string name, state;
    if (!(stat >> process >> name >> state >> parent)) continue;
    if (parent == client.pid() && name == "(cleave-server)") return process;
  }
  FAIL("the client has no server");
  return 0;
}

TEST_CASE("a client whose own server is killed says so") {
  const TemporaryFolder folder;
  const std::string run = folder.path("client");
  const Process client = startClient("train", run, {"--set", "train.epochs=100000"});
  waitForSteps(run);
  REQUIRE(::kill(serverOf(client), SIGKILL) == 0);
  checkError(finish(client), kFailedRun,
             {"[own-server-ended]",
              "the server that the client has started was killed (SIGKILL); its log: " + run +
                  "/server/local/",
              "/log.txt", "to continue, run: cleave-client train --resume " + run});
  checkFilesComplete(run);
}

TEST_CASE("without checkpoints, a killed server ends the run") {
  const TemporaryFolder folder;
  TestServer killed(folder);
  const Process client = startSlowClient(folder.path("client"), killed.address(), kNoCheckpoints);
  waitForSteps(folder.path("client"));
  killed.process().signal(SIGKILL);
  REQUIRE(client.waitForOutput("retrying", kPatience));
  const TestServer server(folder, {"--set", "listen.port=" + std::to_string(killed.port())},
                          "second");
  checkError(finish(client), kFailedRun, {"[run-not-here]", "run-not-here"});
  checkFilesComplete(folder.path("client"));
}

TEST_CASE("with limits.park_seconds=0, a broken connection ends the run on both sides") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.park_seconds=0"});
  Relay relay("127.0.0.1", server.port());
  const Process client =
      startSlowClient(folder.path("client"), "127.0.0.1:" + std::to_string(relay.port()));
  waitForSteps(folder.path("client"));
  relay.cut();
  // If a write reports the reset first, the next read only returns the end of the stream.
  checkError(finish(client), kFailedRun,
             {"127.0.0.1:" + std::to_string(relay.port()), "that it is a Cleave program"});
  checkFilesComplete(folder.path("client"));
  CHECK(server.process().waitForOutput("ended: ", kPatience));
}

TEST_CASE("a stopped peer is detected within 35 s on both sides, and a half-open connection") {
  // All cases run in parallel, so that the test waits only once.
  const TemporaryFolder folder;
  const TestServer reachable(folder, {}, "reachable");
  Relay relay("127.0.0.1", reachable.port());
  relay.delay(std::chrono::milliseconds(5));  // otherwise the run ends too early
  const Arguments shortRun = {"--set", "train.epochs=30", "--server"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut");
  REQUIRE(runClient("train", whole, with(shortRun, {reachable.address()})).code == 0);
  const Process halfOpen = startClient("train", cut, with(shortRun, {addressAt(relay.port())}));
  waitForSteps(cut);
  relay.abandon(Relay::End::target);
  const Arguments parksNone = {"--set", "limits.park_seconds=0"};
  TestServer stopped(folder, parksNone, "stopped");
  TestServer left(folder, parksNone, "left");
  const Process alone = startSlowClient(folder.path("alone"), stopped.address());
  Process held = startSlowClient(folder.path("held"), left.address());
  waitForSteps(folder.path("alone"));
  waitForSteps(folder.path("held"));
  const auto start = steady_clock::now();
  stopped.process().signal(SIGSTOP);
  held.signal(SIGSTOP);

  const std::string silent = "has sent nothing for 35 s, not even an answer to a Ping";
  CHECK(left.process().waitForOutput(silent, kPatience));
  const Ended ended = finish(alone);
  CHECK(steady_clock::now() - start < seconds(38));
  checkError(ended, kFailedRun,
             {"[peer-silent]", stopped.address() + " " + silent, "check that it is still running"});
  checkFilesComplete(folder.path("alone"));

  stopped.process().signal(SIGCONT);
  CHECK(stopped.process().waitForOutput("ended: ", kPatience));
  held.signal(SIGCONT);
  checkError(finish(held), kFailedRun, {});
  for (TestServer* server : {&stopped, &left}) {
    const std::string next = folder.path("next-" + std::to_string(server->port()));
    CHECK(runClient("train", next, {"--server", server->address()}).code == 0);
  }
  CHECK(finish(halfOpen).code == 0);
  CHECK(halfOpen.waitForOutput(silent, kPatience));
  CHECK((readFile(cut + "/model.safetensors") == readFile(whole + "/model.safetensors")));
}

// A command prefix that runs a program with a private disk of 200 KiB at `folder`. Empty if this
// user is not permitted to mount a disk.
Arguments withSmallDisk(const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const char* flags : {"-m", "-rm"}) {
    const Arguments within = {"/usr/bin/unshare",
                              flags,
                              "/bin/sh",
                              "-c",
                              "mount -t tmpfs -o size=200k none \"$0\" && exec \"$@\"",
                              folder};
    Arguments trial = within;
    trial.emplace_back("/bin/true");
    if (finish(Process::start(trial)).code == 0) return within;
  }
  WARN("skipped: this user may not mount a disk in its own namespace");
  return {};
}

TEST_CASE("a full disk at the client ends the run with a clear error") {
  const TemporaryFolder folder;
  const std::string disk = folder.path("disk");
  const Arguments within = withSmallDisk(disk);
  if (within.empty()) return;
  TestServer server(folder);
  const Ended ended = finish(startSlowClient(disk + "/run", server.address(), {}, within));
  checkError(
      ended, kFailedRun,
      {"[cannot-write]", disk + "/run/", ".csv: rows could not be written: No space left on device",
       "free disk space; to continue, run: cleave-client train --resume " + disk + "/run"});
  CHECK(server.process().waitForOutput("the client ended it (failed)", kPatience));
}

TEST_CASE("a full disk at the server ends the run, and the client reports it") {
  const TemporaryFolder folder;
  const std::string disk = folder.path("disk");
  const Arguments within = withSmallDisk(disk);
  if (within.empty()) return;
  TestServer server(folder, {"--set", "limits.disk_reserve_mib=0"}, "disk/store", within);
  const std::vector<std::string> says = {"the server's disk has only", "beyond its reserve",
                                         "to free disk space in the server's store"};
  const Process first = startSlowClient(folder.path("first"), server.address());
  checkError(finish(first), kFailedRun, says);
  // The server is still running. The next run fails in the same way, or is refused if the disk has
  // no room at all.
  const Process second = startSlowClient(folder.path("second"), server.address());
  checkError(finish(second), kFailedRun, says);

  server.process().signal(SIGTERM);
  CHECK(finish(server.process()).code == 0);
}

TEST_CASE("a disk that a run and its own server have filled is the one to free") {
  const TemporaryFolder folder;
  const std::string disk = folder.path("disk");
  const Arguments within = withSmallDisk(disk);
  if (within.empty()) return;
  const Ended ended =
      finish(startClient("train", disk + "/run", {"--set", "train.epochs=1000"}, within));
  // Either side may be the first that cannot write.
  checkError(
      ended, kFailedRun,
      {"; the client has started its own server, which stores its files in the run's folder " +
           disk + "/run too",
       "free disk space on this machine; to continue, run: cleave-client train --resume " + disk +
           "/run"});
}

TEST_CASE("rows that could not be written fail their run, and not the server that goes on") {
  const TemporaryFolder folder;
  TestServer server(folder, {}, "store", failingAt("record:6:enospc"));
  const Process first = startSlowClient(folder.path("first"), server.address());
  checkError(finish(first), kFailedRun, {"[cannot-write]", "the server's disk is full"});
  CHECK(runClient("train", folder.path("next"), {"--server", server.address()}).code == 0);
  server.process().signal(SIGTERM);
  const Ended ended = finish(server.process());
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("the server's disk is full") && !Contains("error ["));
}

TEST_CASE("a loss that is not finite is reported with step, micro-batch and a hint") {
  struct Row {
    std::string name;
    Arguments more;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows = {
      {"made by the tail", {}, {" in train step ", "was finite when it arrived, so the tail"}},
      {"came from the body",
       {"--set", "codec=fp16"},
       {" in train step 2, micro-batch 0", "had non-finite values when it arrived"}},
      {"in evaluation", {"--set", "train.max_steps=2"}, {" in eval step 1, micro-batch 0"}},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.name);
    Arguments arguments = {"--set", "train.learning_rate={peak: 1e6}", "--set", "train.epochs=20"};
    arguments.insert(arguments.end(), row.more.begin(), row.more.end());
    std::vector<std::string> says = row.says;
    says.insert(says.end(), {"the loss is ", ", micro-batch ", "lower train.learning_rate.peak"});
    checkError(runClient("train", folder.path(row.name), arguments), kFailedRun, says);
  }
}

TEST_CASE("the client connects to a server that starts late") {
  const TemporaryFolder folder;
  std::uint16_t port = 0;
  {
    const TestServer server(folder);
    port = server.port();
  }
  const Process client = startClient("train", folder.path("client"),
                                     {"--server", "127.0.0.1:" + std::to_string(port)});
  REQUIRE(client.waitForOutput("retrying", kPatience));
  const TestServer server(folder, {"--set", "listen.port=" + std::to_string(port)}, "second");
  CHECK(finish(client).code == 0);
}

TEST_CASE("a server that does not allow clients to fetch its weights still trains") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "weights.fetch=false"});
  const Ended ended = runClient("train", folder.path("client"), {"--server", server.address()});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("does not allow clients to fetch the body"));
  CHECK_FALSE(std::filesystem::exists(folder.path("client") + "/model.safetensors"));
}

TEST_CASE("--help and --version print to stdout and exit with 0") {
  for (const std::string& program : {serverProgram(), clientProgram()}) {
    const Ended help = finish(Process::start({program, "--help"}));
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains("Usage"));
    const Ended version = finish(Process::start({program, "--version"}));
    CHECK(version.code == 0);
    CHECK_THAT(version.output, Contains("cleave "));
  }
  for (const std::string command : {"train", "verify"}) {
    CHECK_THAT(finish(Process::start({clientProgram(), command, "--help"})).output,
               Contains("Example"));
  }
  CHECK_THAT(finish(Process::start({serverProgram(), "serve", "--help"})).output,
             Contains("Example"));
}

}  // namespace
}  // namespace cleave::test
