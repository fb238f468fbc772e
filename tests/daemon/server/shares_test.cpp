// Limits per identity on idle sessions, runs per hour and disk space. Also tests sessions that the
// operator ends.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

Ended sessions(const TemporaryFolder& folder, const Arguments& more) {
  Arguments arguments = {serverProgram(), "sessions"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.insert(arguments.end(), {"--set", "store=" + folder.path("store")});
  return finish(Process::start(arguments));
}

nlohmann::json listSessions(const TemporaryFolder& folder) {
  const Ended ended = sessions(folder, {"list", "--json"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

TEST_CASE("a client that only answers pings loses its session, and a slow one does not") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.sessions=2", "--set", "limits.idle_seconds=2",
                             "--set", "limits.ping_seconds=0.5"});
  Process slow = startSlowClient(folder.path("slow"), server.address());
  waitForSteps(folder.path("slow"));
  Process idle = startSlowClient(
      folder.path("idle"), server.address(),
      {"--set", "model={name: sleep, of: mlp, F1: 60000, B1: 1}", "--set", "run.name=idle"});
  REQUIRE(server.process().waitForOutput("run idle-", kPatience));
  // The server has no room until it has ended the idle session.
  const Ended honest =
      runClient("train", folder.path("honest"),
                {"--server", server.address(), "--set", "connect.retry_seconds=100"});
  INFO(honest.errors);
  CHECK(honest.code == 0);
  CHECK(server.process().waitForOutput("the client has been idle for 2 s", kPatience));
  CHECK_FALSE(slow.wait(std::chrono::milliseconds(0)));
  CHECK(listSessions(folder).size() == 1);
  idle.signal(SIGKILL);
  finish(idle);
  slow.signal(SIGINT);
  CHECK(finish(slow).code != 2);
  server.stop();
  const std::string log = server.process().errors();
  CHECK_THAT(log, Contains("1 session-idle"));
}

TEST_CASE("an identity that exceeds its runs per hour is refused") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.runs_per_hour=2"});
  const Arguments at = {"--server", server.address(), "--set", "connect.retry_seconds=1"};
  CHECK(runClient("train", folder.path("a"), at).code == 0);
  CHECK(runClient("train", folder.path("b"), at).code == 0);
  checkError(runClient("train", folder.path("c"), at), kFailedRun,
             {"[too-many-runs]", "its maximum of 2 runs in the last hour", "limits.runs_per_hour"});
  CHECK(server.runFolders().size() == 2);
}

// A server with two identities: the share of hog is 1 MiB.
struct ServerOfTwo {
  ServerOfTwo() : server(folder, prepared()) {}

  Arguments prepared() {
    const std::string own = certificates.path("server");
    authority.writeServer(own);
    authority.write(hog, "client", clientRequest("hog"));
    authority.write(bob, "client", clientRequest("bob"));
    std::ofstream(folder.path("access.yaml")) << "hog: {disk_mib: 1}\nbob: {}\n";
    return {"--set", "tls.enabled=true",
            "--set", "tls.folder=" + own,
            "--set", "access.file=" + folder.path("access.yaml")};
  }
  Arguments as(const std::string& who, const Arguments& more = {}) const {
    return with(
        {"--server", server.address(), "--tls", who, "--set", "threads={client: 1, server: 1}"},
        more);
  }

  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string hog = certificates.path("hog"), bob = certificates.path("bob");
  TestServer server;
};

TEST_CASE("an identity that fills its share of the disk loses only its own run") {
  ServerOfTwo two;
  auto& [folder, certificates, authority, hog, bob, server] = two;
  const auto as = [&](const std::string& who, const Arguments& more = {}) {
    return two.as(who, more);
  };
  REQUIRE(runClient("train", folder.path("alone"), as(bob)).code == 0);

  const Process full = startClient("train", folder.path("hog"),
                                   as(hog, {"--set", "train.epochs=100000", "--set", "eval.every=0",
                                            "--set", "train.micro_batches=8"}));
  waitForSteps(folder.path("hog"));
  const Process beside =
      startClient("train", folder.path("beside"), as(bob, {"--set", "run.name=beside"}));
  checkError(finish(full), kFailedRun,
             {"[disk-share-full]", "the files of hog on the server take", "disk_mib"});
  CHECK(finish(beside).code == 0);
  CHECK(readTensors(folder.path("beside/model.safetensors")) ==
        readTensors(folder.path("alone/model.safetensors")));
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("store/hog"))) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  CHECK(bytes < (1 << 20));
  CHECK(bytes > (1 << 19));
  checkError(runClient("train", folder.path("again"), as(hog)), kFailedRun,
             {"[disk-share-full]", "the files of hog on the server take"});

  // The operator removes the runs.
  fs::remove_all(folder.path("store/hog"));
  const auto start = std::chrono::steady_clock::now();
  int code = kFailedRun;
  for (int i = 0; code != 0; ++i) {
    REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
    code = runClient("train", folder.path("later-" + std::to_string(i)), as(hog)).code;
  }
  server.stop();  // the server exits with 0, because only the run has failed
}

TEST_CASE("without room for a second checkpoint in its identity's share, a run completes") {
  const ServerOfTwo two;
  // The body's checkpoint takes more than half of the share, and the records take little.
  const Arguments run = {"--set", "model={name: mlp, width: 256, depth: 2}",
                         "--set", "checkpoint.every_steps=3",
                         "--set", "train.epochs=40",
                         "--set", "train.micro_batches=1"};
  const std::string full = two.folder.path("hog"), beside = two.folder.path("bob");
  const Process other = startClient("train", beside, two.as(two.bob, run));
  const Ended ended = runClient("train", full, two.as(two.hog, run));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  // The first checkpoint was made.
  CHECK_THAT(ended.errors, Contains("[disk-share-full]") && Contains("the checkpoint needs 0.") &&
                               Contains("runs list --identity hog") &&
                               !Contains("continue from step 0"));
  const Ended whole = finish(other);
  CHECK(whole.code == 0);
  CHECK_THAT(whole.errors, !Contains("no checkpoint"));
  CHECK(readTensors(full + "/model.safetensors") == readTensors(beside + "/model.safetensors"));
}

TEST_CASE("no run begins if the free disk space is below the reserve") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "limits.disk_reserve_mib=1073741824"});
  checkError(runClient("train", folder.path("a"), {"--server", server.address()}), kFailedRun,
             {"[disk-reserve]", "left beyond its reserve", "limits.disk_reserve_mib"});
  CHECK(server.runFolders().empty());
}

TEST_CASE("the operator lists sessions and ends one, and the others continue") {
  const TemporaryFolder folder;
  TestServer server(folder);
  CHECK_THAT(sessions(folder, {"list"}).output, Contains("no sessions"));
  const Process first =
      startSlowClient(folder.path("first"), server.address(), {"--set", "run.name=first"});
  Process second =
      startSlowClient(folder.path("second"), server.address(), {"--set", "run.name=second"});
  waitForSteps(folder.path("first"));
  waitForSteps(folder.path("second"));
  const nlohmann::json list = listSessions(folder);
  REQUIRE(list.size() == 2);
  const bool isFirst = list[0].at("run").get<std::string>().starts_with("first-");
  const auto number = list[isFirst ? 0 : 1].at("session").get<std::uint64_t>();
  CHECK_THAT(sessions(folder, {"list"}).output, Contains("first-") && Contains("second-"));

  checkError(sessions(folder, {"end", "77"}), kFailedRun,
             {"[no-such-session]", "no session 77", "cleave-server sessions list"});
  CHECK(sessions(folder, {"end", "first"}).code == kWrongUse);
  CHECK(sessions(folder, {"end"}).code == kWrongUse);
  CHECK(listSessions(folder).size() == 2);

  CHECK(sessions(folder, {"end", std::to_string(number)}).code == 0);
  const Ended ended = finish(first);
  checkError(ended, kFailedRun, {"[ended-by-operator]", "operator has ended this session"});
  CHECK_THAT(ended.errors, !Contains("retrying"));
  while (listSessions(folder).size() > 1) std::this_thread::yield();
  CHECK_THAT(listSessions(folder)[0].at("run").get<std::string>(), Catch::StartsWith("second-"));
  CHECK(server.process().waitForOutput("the operator ends session", kPatience));
  second.signal(SIGKILL);
  finish(second);
}

TEST_CASE("mistakes with `cleave-server sessions` are reported with a hint") {
  const TemporaryFolder folder;
  checkMistakes({serverProgram(), "sessions"},
                {{"no server",
                  {"list", "--set", "store=" + folder.path("none")},
                  kFailedRun,
                  {"[no-status]", "no server shows its status at", "start the server"}},
                 {"no command", {}, kWrongUse, {"list, end"}}});
  CHECK_THAT(finish(Process::start({serverProgram(), "sessions", "end", "--help"})).output,
             Contains("Example:\n  cleave-server sessions end "));
}

}  // namespace
}  // namespace cleave::test
