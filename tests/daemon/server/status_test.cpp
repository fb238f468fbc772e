// `cleave-server status`: what it shows of a running server, and which users have access.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/daemon/pty.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

Arguments statusOf(const TemporaryFolder& folder, const Arguments& more = {}) {
  Arguments arguments = {serverProgram(),           "status", "--config",
                         configFile("server.yaml"), "--set",  "store=" + folder.path("store")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

nlohmann::json askStatus(const TemporaryFolder& folder) {
  const Ended ended = finish(Process::start(statusOf(folder, {"--json"})));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

mode_t modeOf(const std::string& path) {
  struct stat found {};
  REQUIRE(::stat(path.c_str(), &found) == 0);
  return found.st_mode & 07777;
}

TEST_CASE("status shows a server and its sessions without interrupting them") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const nlohmann::json quiet = askStatus(folder);
  CHECK(quiet.at("address") == server.address());
  CHECK(quiet.at("pid") == server.process().pid());
  CHECK(quiet.at("sessions").empty());
  CHECK(quiet.at("max_sessions") == 8);
  CHECK(quiet.at("memory").at("admitted_bytes") == 0);
  CHECK(quiet.at("memory").at("resident_bytes") > 10'000'000);

  Process client = startSlowClient(folder.path("client"), server.address(),
                                   {"--set", "run.name=seen", "--set", "train.epochs=100000",
                                    "--set", "model={name: sleep, of: mlp, F1: 10, B1: 10}"});
  waitForSteps(folder.path("client"));
  const nlohmann::json busy = askStatus(folder);
  REQUIRE(busy.at("sessions").size() == 1);
  const nlohmann::json& session = busy.at("sessions")[0];
  CHECK(session.at("identity") == "local");
  CHECK(session.at("kind") == "run");
  CHECK(session.at("model") == "sleep");
  CHECK_THAT(session.at("run").get<std::string>(), Catch::StartsWith("seen-"));
  CHECK_THAT(session.at("from").get<std::string>(), Catch::StartsWith("127.0.0.1:"));
  CHECK(session.at("phase") == "train");
  CHECK(session.at("step") > 1);
  CHECK(session.at("epoch") >= 1);
  CHECK(session.at("memory_bytes") > 0);
  CHECK(session.at("resident_bytes") > 0);
  CHECK(session.at("busy_shares").at("server_compute") >= 0);
  CHECK(busy.at("memory").at("admitted_bytes") == session.at("memory_bytes"));
  CHECK(session.at("seconds") > 0);
  CHECK(session.at("idle_seconds") >= 0);
  CHECK(session.at("up_bytes_per_second") > 0);
  CHECK(session.at("down_bytes_per_second") > 0);
  // The client waits 80 ms per step, and nothing else happens during that time.
  CHECK(session.at("bottleneck") == "client or latency");
  CHECK(session.at("busy_shares").size() == 4);
  const double images = session.at("images_per_second").get<double>();
  CHECK(images > 0);
  CHECK(images < 32 / 0.08);

  const Ended table = finish(Process::start(statusOf(folder)));
  REQUIRE(table.code == 0);
  CHECK_THAT(table.output, Contains("1 of 8 sessions") && Contains("limited by") &&
                               Contains(session.at("run").get<std::string>()) &&
                               Contains("client or latency"));
  const auto step = askStatus(folder).at("sessions")[0].at("step").get<std::uint64_t>();
  const auto start = std::chrono::steady_clock::now();
  while (askStatus(folder).at("sessions")[0].at("step").get<std::uint64_t>() <= step) {
    REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
  }
  client.signal(SIGKILL);
  finish(client);
}

TEST_CASE("the status counts refusals by reason") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "models.allow=[small_cnn]"});
  for (const char* name : {"a", "b"}) {
    CHECK(runClient("train", folder.path(name), {"--server", server.address()}).code == kWrongUse);
  }
  CHECK(askStatus(folder).at("refusals") == nlohmann::json({{"model-not-allowed", 2}}));
  CHECK_THAT(finish(Process::start(statusOf(folder))).output, Contains("2 model-not-allowed"));
}

TEST_CASE("status --watch repeats until the server exits, with --json one document per line") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Process lines = Process::start(statusOf(folder, {"--watch", "--json"}));
  const TerminalProcess watched(statusOf(folder, {"--watch"}), 60, {{"TERM", "xterm"}});
  REQUIRE(lines.waitForOutput("}\n{", kPatience));
  REQUIRE(watched.waitForOutput("\x1b[H\x1b[J", kPatience));
  const std::string shown = watched.output();
  server.stop();
  const Ended ended = finish(lines);
  checkError(ended, kFailedRun,
             {"[no-status]", "no server shows its status at", "start the server"});
  CHECK(watched.wait(kPatience) == kFailedRun);
  const std::string first = ended.output.substr(0, ended.output.find('\n'));
  CHECK(nlohmann::json::parse(first).at("address") == server.address());
  CHECK_THAT(screenAfter(shown, 1000).front(), Contains("process ") && Contains(server.address()));
}

TEST_CASE("only the server's user can use the socket, and the server removes it at the end") {
  const TemporaryFolder folder;
  const std::string socket = folder.path("store/.status/socket");
  {
    TestServer server(folder);
    CHECK(modeOf(folder.path("store/.status")) == 0700);
    CHECK(modeOf(socket) == 0600);
    server.stop();
  }
  CHECK_FALSE(fs::exists(socket));
}

TEST_CASE("another user is refused, even if the file permissions allow access") {
  if (::geteuid() != 0) return;  // only root can change to another user
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string socket = folder.path("store/.status/socket");
  for (fs::path open = socket; open != fs::temp_directory_path(); open = open.parent_path()) {
    fs::permissions(open, fs::perms(0777));
  }
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(socket.size() < sizeof address.sun_path);
  std::strcpy(address.sun_path, socket.c_str());
  // The peer's identity is recorded when it connects.
  REQUIRE(::seteuid(65534) == 0);
  const int connected =
      ::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  REQUIRE(::seteuid(0) == 0);
  REQUIRE(connected == 0);
  char byte = 0;
  CHECK(::read(file, &byte, 1) <= 0);
  ::close(file);
  CHECK(server.process().waitForOutput("refused a process of another user", kPatience));
  CHECK(askStatus(folder).at("address") == server.address());
}

TEST_CASE("a killed server leaves a socket, which the next server replaces") {
  const TemporaryFolder folder;
  {
    TestServer server(folder);
    server.process().signal(SIGKILL);
    finish(server.process());
  }
  REQUIRE(fs::exists(folder.path("store/.status/socket")));
  checkError(finish(Process::start(statusOf(folder))), kFailedRun, {"Connection refused"});
  TestServer next(folder);
  CHECK(askStatus(folder).at("address") == next.address());
}

TEST_CASE("a store that cannot be read is an error, as is a stdout that cannot be written") {
  const TemporaryFolder folder;
  const std::string store = "store=" + folder.path("store");
  const std::vector<Arguments> readers = {{serverProgram(), "runs", "list", "--set", store},
                                          {serverProgram(), "usage", "--set", store}};
  for (const Arguments& command : readers) {
    checkError(finish(Process::start(command)), kWrongUse,
               {"[cannot-read]", folder.path("store"), "--config FILE"});
  }
  fs::create_directory(folder.path("store"));
  std::vector<Arguments> commands = readers;
  commands.insert(commands.end(), {{serverProgram(), "keys"},
                                   {serverProgram(), "--help"},
                                   {clientProgram(), "keys", "--json"},
                                   {clientProgram(), "models"},
                                   {clientProgram(), "--version"}});
  for (const Arguments& command : commands) {
    CHECK(finish(Process::start(command)).code == 0);
    Arguments full = {"/bin/sh", "-c", "exec \"$@\" > /dev/full", "sh"};
    full.insert(full.end(), command.begin(), command.end());
    checkError(finish(Process::start(full)), 1, {"[cannot-write]", "stdout cannot be written"});
  }
}

TEST_CASE("a second server on a store is refused, and commands that read it are not") {
  const TemporaryFolder folder;
  const Arguments serve = {serverProgram(), "serve", "--set",
                           "listen.port=0", "--set", "store=" + folder.path("store")};
  {
    TestServer first(folder);
    checkError(finish(Process::start(serve)), kWrongUse,
               {"[store-in-use]", "with id " + std::to_string(first.process().pid()) + " on ",
                "--set store=DIR"});
    CHECK(askStatus(folder).at("address") == first.address());
    for (const Arguments& command :
         {Arguments{"runs", "list"}, Arguments{"usage"}, Arguments{"status"}}) {
      Arguments reads = {serverProgram()};
      reads.insert(reads.end(), command.begin(), command.end());
      reads.insert(reads.end(), {"--set", "store=" + folder.path("store")});
      CHECK(finish(Process::start(reads)).code == 0);
    }
    first.process().signal(SIGKILL);
    finish(first.process());
  }
  TestServer next(folder);  // the kernel has released the lock
  CHECK(askStatus(folder).at("address") == next.address());
}

TEST_CASE("a server whose socket another server uses warns, and the first one keeps it") {
  const TemporaryFolder folder;
  TestServer first(folder);
  TestServer second(folder, {"--set", "status.socket=" + folder.path("store/.status/socket")},
                    "second");
  CHECK_THAT(second.process().errors(),
             Contains("another server uses it") && Contains("--set status.socket=PATH"));
  CHECK(askStatus(folder).at("address") == first.address());
  second.stop();
  CHECK(askStatus(folder).at("address") == first.address());
}

TEST_CASE(
    "status clients that do not read, or that connect all at once, do not block other clients") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string socket = folder.path("store/.status/socket");
  std::vector<int> files;
  for (int j = 0; j < 600; ++j) {
    const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, socket.c_str());
    ::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    files.push_back(file);
  }
  CHECK(askStatus(folder).at("address") == server.address());  // while all of them are connected
  CHECK(runClient("train", folder.path("client"), {"--server", server.address()}).code == 0);
  for (const int file : files) ::close(file);
  CHECK(askStatus(folder).at("address") == server.address());
}

TEST_CASE("mistakes with `cleave-server status` are reported with a hint") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path("open"));
  fs::permissions(folder.path("open"), fs::perms(0755));
  const Ended exposed = finish(Process::start({serverProgram(), "serve", "--set", "listen.port=0",
                                               "--set", "store=" + folder.path("store"), "--set",
                                               "status.socket=" + folder.path("open/socket")}));
  checkError(exposed, kWrongUse,
             {"[status-exposed]", "can be opened by other users", "status.socket=DIR/socket"});
  checkMistakes({serverProgram(), "status"}, {{"no server",
                                               {"--set", "store=" + folder.path("none")},
                                               kFailedRun,
                                               {"[no-status]", "no server shows its status at",
                                                "none/.status/socket", "start the server"}},
                                              {"switched off",
                                               {"--set", "status.socket=off"},
                                               kWrongUse,
                                               {"[status-off]", "shows no status"}}});
  CHECK_THAT(finish(Process::start({serverProgram(), "status", "--help"})).output,
             Contains("Example:\n  cleave-server status "));
  // The server also runs without a status socket.
  TestServer silent(folder, {"--set", "status.socket=off"});
  CHECK_FALSE(fs::exists(folder.path("store/.status")));
  // The path is longer than the limit of a Unix socket's path.
  const std::string deep = folder.path(std::string(100, 'd') + "/" + std::string(100, 'e'));
  TestServer far(folder, {"--set", "status.socket=" + deep + "/socket"}, "other");
  const Ended found = finish(Process::start(
      {serverProgram(), "status", "--json", "--set", "status.socket=" + deep + "/socket"}));
  REQUIRE(found.code == 0);
  CHECK(nlohmann::json::parse(found.output).at("address") == far.address());
}

}  // namespace
}  // namespace cleave::test
