// Jumps of the wall clock during training affect only the recorded times.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

const std::string kFakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

// A wall clock that this test sets; the steady clock is unaffected.
class WallClock {
 public:
  explicit WallClock(const TemporaryFolder& folder) : file_(folder.path("clock")) { jump("+0"); }

  // In libfaketime's syntax: "+1y" is one year ahead of the real time.
  void jump(const std::string& to) const {
    // The file is replaced atomically, because the programs may read it at any time.
    std::ofstream(file_ + ".new") << to << "\n";
    std::filesystem::rename(file_ + ".new", file_);
  }
  // The command prefix that runs a program with this clock.
  Arguments within() const {
    return {
        "/usr/bin/env",        "LD_PRELOAD=" + kFakeTime,        "FAKETIME_TIMESTAMP_FILE=" + file_,
        "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"};
  }

 private:
  std::string file_;
};

TEST_CASE("jumps of the wall clock neither end a connection nor change a result") {
  if (!std::filesystem::exists(kFakeTime)) {
    WARN("skipped: libfaketime is missing (scripts/setup.sh installs it)");
    return;
  }
  const TemporaryFolder folder;
  const WallClock clock(folder);
  // A jump of an hour would break pings and timeouts just like a jump of a year.
  TestServer server(folder,
                    {"--set", "limits.ping_seconds=0.2", "--set", "limits.ping_timeout_seconds=30"},
                    "store", clock.within());
  const Arguments run = {
      "--server", server.address(), "--set", "model={name: sleep, of: mlp, F1: 5, B1: 5}",
      "--set",    "train.epochs=6", "--set", "threads={client: 1, server: 1}"};
  const Process client = startClient("train", folder.path("client"), run, clock.within());
  waitForSteps(folder.path("client"));
  for (const std::string to : {"+1h", "-1h", "+1y", "-1y", "+0"}) {
    clock.jump(to);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  const Ended ended = finish(client);
  INFO(ended.errors);
  CHECK(ended.code == 0);
  checkFilesComplete(folder.path("client"));
  server.stop();
  checkFilesComplete(server.runFolders().at(0));

  // Checks that the clock did jump, and that no duration was affected.
  const auto rows = readCsv(folder.path("client") + "/transfers.csv");
  std::set<std::string> years;
  for (const CsvRow& row : rows) {
    years.insert(row.at("time").substr(0, 4));
    for (const std::string column : {"queue_seconds", "wire_seconds", "decode_seconds"}) {
      if (!row.at(column).empty()) CHECK(std::abs(std::stod(row.at(column))) < 60);
    }
  }
  CHECK(years.size() >= 3);

  const Process plain = startClient("train", folder.path("plain"),
                                    {"--set", "model={name: sleep, of: mlp, F1: 5, B1: 5}", "--set",
                                     "train.epochs=6", "--set", "threads={client: 1, server: 1}"});
  REQUIRE(finish(plain).code == 0);
  CHECK((readFile(folder.path("plain") + "/model.safetensors") ==
         readFile(folder.path("client") + "/model.safetensors")));
}

}  // namespace
}  // namespace cleave::test
