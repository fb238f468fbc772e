// The server's limits on connections, idle clients and disk use, and its count of refusals.

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/run/run_folder.h"
#include "server/access/refusals.h"
#include "server/config/connection_limits.h"
#include "server/run/session_lines.h"
#include "server/sessions/idle.h"
#include "server/store/disk_share.h"
#include "server/store/finished_runs.h"
#include "server/store/run_record.h"
#include "tests/support/error_code.h"
#include "tests/support/files/file_size_limit.h"
#include "tests/support/files/folder.h"

using namespace cleave;
using namespace std::chrono_literals;
using boost::asio::ip::make_address;
using Catch::Matchers::Contains;
using test::Folder;

namespace {

struct Admitted {
  explicit Admitted(const ConnectionLimitSettings& settings) : limits(settings) {}

  // Returns the code of the refusal; empty if the connection is admitted.
  std::string open(const std::string& address, SteadyTime time = {}) {
    try {
      tickets.push_back(limits.admit(make_address(address), time));
      return {};
    } catch (const Error& error) {
      retrySeconds = error.retrySeconds();
      return error.code();
    }
  }
  // Returns how many more connections are admitted.
  int count(const std::string& address, SteadyTime time = {}) {
    int number = 0;
    while (open(address, time).empty()) ++number;
    return number;
  }

  ConnectionLimits limits;
  std::vector<std::unique_ptr<ConnectionLimits::Ticket>> tickets;
  double retrySeconds = 0;
};

}  // namespace

TEST_CASE("connections are limited in total and per address, and are released when they end") {
  Admitted server({.connections = 5, .connectionsPerAddress = 3});
  CHECK(server.count("10.0.0.1") == 3);
  CHECK(server.open("10.0.0.1") == "too-many-from-address");
  CHECK(server.retrySeconds > 0);
  CHECK(server.count("10.0.0.2") == 2);
  CHECK(server.open("10.0.0.2") == "too-many-connections");
  server.tickets.erase(server.tickets.begin());
  CHECK(server.open("10.0.0.1").empty());
}

TEST_CASE("an IPv6 /64 counts as one address, and an IPv4-mapped address as its IPv4 address") {
  Admitted server({.connectionsPerAddress = 2});
  CHECK(server.open("2001:db8:1:2::1").empty());
  CHECK(server.open("2001:db8:1:2:ffff::2").empty());
  CHECK(server.open("2001:db8:1:2::3") == "too-many-from-address");
  CHECK(server.open("2001:db8:1:3::1").empty());
  CHECK(server.count("::ffff:10.0.0.1") == 2);
  CHECK(server.open("10.0.0.1") == "too-many-from-address");
}

TEST_CASE(
    "new connections are limited by rate and burst, and no address can use up the whole limit") {
  Admitted server({.perSecond = 10, .burst = 20, .perSecondPerAddress = 5});
  const SteadyTime start{};
  CHECK(server.count("10.0.0.1", start) == 10);
  CHECK(server.open("10.0.0.1", start) == "too-many-handshakes");
  CHECK(server.retrySeconds == 1);
  CHECK(server.count("10.0.0.2", start) == 10);
  CHECK(server.open("10.0.0.3", start) == "too-many-handshakes");  // the total limit
  CHECK(server.count("10.0.0.1", start + 1s) == 5);
  CHECK(server.count("10.0.0.3", start + 1s) == 5);
  CHECK(server.count("10.0.0.1", start + 1h) == 10);
}

TEST_CASE("addresses without connections are forgotten after a while, and then count as new") {
  Admitted server({.connections = 100000, .perSecond = 1e6, .burst = 1e6});
  const SteadyTime start{};
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const auto address = boost::asio::ip::address_v4(0x0A000000 + i);
    server.limits.admit(address, start + i * 1ms);
  }
  CHECK(server.open("10.0.0.1", start + 1h).empty());
}

TEST_CASE("every refusal is counted, and a flood logs one line per second per reason") {
  Refusals refusals;
  const SteadyTime start = now();
  const RunError slow("too-slow", "slow");
  for (int i = 0; i < 1000; ++i) refusals.note("peer", slow, start + i * 1ms);
  refusals.note("peer", RunError("flood", "a\nline"), start);
  refusals.count(ProtocolError("bad-frame", "x"));
  refusals.count(RunError("whatever-the-peer-says", "x"));
  CHECK(refusals.count("too-slow") == 1000);
  CHECK(refusals.logged() == 2);
  CHECK(refusals.summary() == "1 bad-frame, 1 flood, 1000 too-slow");
  refusals.flush(start + 999ms);
  CHECK(refusals.logged() == 2);
  refusals.flush(start + 1s);  // logs "999 more"
  CHECK(refusals.logged() == 3);
  refusals.flush(start + 5s);
  CHECK(refusals.logged() == 3);
  refusals.note("peer", slow, start + 5s);
  CHECK(refusals.logged() == 4);
}

// ---- Idle clients ----

namespace {

// Checks once per second from `from` to `to`. Returns the result of the last check.
double idleAfter(IdleClock& clock, std::chrono::seconds from, std::chrono::seconds to,
                 SteadyTime activity, bool waitsForServer) {
  double idle = 0;
  for (auto second = from; second <= to; second += 1s) {
    idle = clock.look(SteadyTime{} + second, activity, waitsForServer);
  }
  return idle;
}

}  // namespace

TEST_CASE("a client that does nothing is idle from its last frame on") {
  const SteadyTime start{};
  IdleClock clock(start);
  CHECK(idleAfter(clock, 1s, 10s, start, false) == 10);
  CHECK(clock.look(start + 11s, start + 10500ms, false) == 0.5);
  CHECK(idleAfter(clock, 12s, 20s, start + 10500ms, false) == 9.5);
}

TEST_CASE(
    "time in which a client waits for the server is not idle time, and restarts the idle time") {
  const SteadyTime start{};
  IdleClock clock(start);
  CHECK(idleAfter(clock, 1s, 5s, start, false) == 5);
  CHECK(idleAfter(clock, 6s, 1000s, start, true) == 0);
  CHECK(idleAfter(clock, 1001s, 1007s, start, false) == 7);
}

TEST_CASE("after being stopped by a signal, a server does not consider its sessions idle") {
  const SteadyTime start{};
  IdleClock clock(start);
  CHECK(clock.look(start + 3600s, start, false) == IdleClock::kMaxSecondsPerLook);
}

// ---- The log ----

TEST_CASE("sessions that open and close rapidly log only a few lines per identity and second") {
  SessionLines lines;
  const SteadyTime start{};
  const auto logged = [&](const std::string& identity, SteadyTime time) {
    std::uint64_t count = 0;
    for (int i = 0; i < 100; ++i) count += lines.take(identity, time) ? 1 : 0;
    return count;
  };
  CHECK(logged("a", start) == SessionLines::kPerSecond);
  CHECK(logged("b", start) == SessionLines::kPerSecond);
  CHECK(logged("a", start + 999ms) == 0);
  lines.flush(start + 999ms);
  CHECK(logged("a", start + 999ms) == 0);
  lines.flush(start + 1s);
  CHECK(logged("a", start + 1s) == SessionLines::kPerSecond);
  CHECK(logged("b", start + 5s) == SessionLines::kPerSecond);
  CHECK(lines.leftOut() == 600 - 4 * SessionLines::kPerSecond);
}

// ---- The disk ----

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("a folder's size counts the blocks of files and folders, without following links") {
  const Folder store;
  CHECK(folderBytes(store.file("none")) == 0);
  store.write("a/run/steps.csv", std::string(4097, 'x'));
  store.write("a/run/empty", "");
  std::filesystem::create_symlink("/", store.file("a/root"));
  CHECK(folderBytes(store.file("a")) ==
        2 * 4096 + 2 * 4096 + 4096);  // two folders, a file and a link
}

TEST_CASE("an identity can use the rest of its share, independently of other identities") {
  const Folder store;
  store.write("a/run/transfers.csv", std::string(900 << 10, 'x'));
  DiskShares shares(store.path.string(), 0);
  const auto a = shares.open("a", kMiB), b = shares.open("b", kMiB);
  CHECK(shares.open("a", kMiB) == a);  // all runs of an identity have the same share
  CHECK_FALSE(a->take(200 << 10));
  CHECK(a->error().code() == "disk-share-full");
  const RunError checkpoint = a->error("the checkpoint", 40 * kMiB);
  CHECK_THAT(checkpoint.what(), Contains("the checkpoint needs 40 MiB more, but the files of a on "
                                         "the server take 0.9 MiB of the allowed 1.0 MiB"));
  CHECK_THAT(checkpoint.hint(),
             Contains("cleave-server runs list --identity a") && Contains("limits.disk_mib"));
  CHECK(a->take(100 << 10));  // a smaller write still fits
  CHECK(errorCode([&] { shares.open("a", kMiB); }) == "disk-share-full");
  CHECK(b->take(kMiB / 2));
  CHECK(errorCode([&] {
          shares.open("a", 2 * kMiB);
        }).empty());  // as if the access file granted more
}

TEST_CASE("removing old runs frees space") {
  const Folder store;
  store.write("a/run/transfers.csv", std::string(2 << 20, 'x'));
  DiskShares shares(store.path.string(), 0);
  REQUIRE(errorCode([&] { shares.open("a", kMiB); }) == "disk-share-full");
  std::filesystem::remove_all(store.file("a/run"));
  const auto start = now();
  SteadyTime later = start;
  while (!errorCode([&] { shares.open("a", kMiB); }).empty()) {
    REQUIRE(secondsSince(start) < 60);
    shares.look(later += 10s);  // the measurement runs on a thread of its own
    std::this_thread::yield();
  }
  CHECK(shares.open("a", kMiB)->usedBytes() <= 4096);
}

TEST_CASE("a full share takes the space of finished runs' checkpoints, of the first one first") {
  const Folder store;
  const auto makeRun = [&](const std::string& name, bool isFinished) {
    store.write("a/" + name + "/steps.csv", std::string(10, 'x'));
    CheckpointStore(diskFiles(), store.file("a/" + name))
        .write(8, std::string(300 << 10, 'x'), "here");
    if (isFinished) markFinished(diskFiles(), store.file("a/" + name));
  };
  makeRun("first", true);
  std::filesystem::last_write_time(store.file("a/first/finished"),
                                   std::filesystem::file_time_type::clock::now() - 1h);
  makeRun("second", true);
  makeRun("open", false);
  const auto hasCheckpoint = [&](const std::string& name) {
    return !CheckpointStore(diskFiles(), store.file("a/" + name)).list().empty();
  };
  const OpenFile used = lockRunFolder(store.file("a/second"));
  DiskShares shares(store.path.string(), 0, [&](const std::string& identity, std::size_t wanted) {
    return removeFinishedCheckpoints(diskFiles(), store.file("" + identity), wanted);
  });
  const auto a = shares.open("a", kMiB + (200 << 10));
  CHECK(a->take(200 << 10));
  CHECK(hasCheckpoint("first"));
  CHECK(a->take(200 << 10));
  CHECK_FALSE(hasCheckpoint("first"));
  CHECK(hasCheckpoint("second"));
  CHECK(hasCheckpoint("open"));
  // Neither a run in use nor one that is not finished gives up its checkpoint.
  CHECK_FALSE(a->take(500 << 10));
  CHECK(a->error().code() == "disk-share-full");
  CHECK(hasCheckpoint("second"));
  CHECK(hasCheckpoint("open"));
  CHECK(std::filesystem::exists(store.file("a/first/steps.csv")));
}

TEST_CASE("one identity gets at most half of the free disk space, and other identities continue") {
  const auto room = std::make_shared<DiskRoom>(10 * kMiB);
  DiskShare hog("hog", 100 * kMiB, room), other("other", 0, room);
  hog.setMax(1000 * kMiB);
  other.setMax(1000 * kMiB);
  std::size_t taken = 0;
  while (hog.take(kMiB)) {
    taken += kMiB;
    *room -= kMiB;
  }
  CHECK(taken == 5 * kMiB);
  CHECK(hog.error().code() == "disk-reserve");
  CHECK(other.take(kMiB));
  *room = -1;  // the free space is less than the reserve
  CHECK_FALSE(other.take(1));
  CHECK(other.error().code() == "disk-reserve");
}

TEST_CASE("space freed since the start does not let an identity use the reserve") {
  const auto room = std::make_shared<DiskRoom>(0);
  DiskShare share("a", 100 * kMiB, room);
  share.setMax(1000 * kMiB);
  share.measured(10 * kMiB, share.namedBytes());  // 90 MiB were removed, but others used the space
  CHECK_FALSE(share.take(1));
  *room = kMiB;
  CHECK(share.take(kMiB));
  CHECK_FALSE(share.take(1));
}

TEST_CASE(
    "files without names count towards a share until they are gone, also when it is measured") {
  const auto room = std::make_shared<DiskRoom>(1000 * kMiB);
  const auto share = std::make_shared<DiskShare>("a", 10 * kMiB, room);
  share->setMax(100 * kMiB);
  {
    const UnnamedSpace space(share, 80 * kMiB);
    CHECK(share->usedBytes() == 90 * kMiB);
    CHECK(errorCode([&] { UnnamedSpace(share, 11 * kMiB); }) == "disk-share-full");
    CHECK_FALSE(share->take(11 * kMiB));
    CHECK(share->wasFull());
    share->measured(10 * kMiB, share->namedBytes());  // finds only the named files
    CHECK(share->usedBytes() == 90 * kMiB);
    CHECK_FALSE(share->take(11 * kMiB));
    CHECK(share->take(10 * kMiB));
  }
  CHECK(share->usedBytes() == 20 * kMiB);
  CHECK(errorCode([&] { UnnamedSpace(share, std::size_t{1} << 62); }) == "disk-share-full");
}

TEST_CASE("no run begins if the disk has no space beyond the reserve") {
  const Folder store;
  DiskShares shares(store.path.string(), std::numeric_limits<std::int64_t>::max() / 2);
  CHECK(errorCode([&] { shares.open("a", kMiB); }) == "disk-reserve");
  CHECK(shares.roomBytes() < 0);
}

TEST_CASE("a run whose last rows are missing says so once, and other runs do not") {
  const Folder store;
  std::filesystem::create_directories(store.file("full"));
  std::filesystem::create_directories(store.file("good"));
  Recorder recorder;
  const auto filesIn = [&](const std::string& name) {
    return std::make_shared<RunFiles>(recorder, store.file("" + name), RunIdentity{name, 1, 1},
                                      std::vector<std::string>{});
  };
  RunRecord full(filesIn("full"), 0, nullptr), good(filesIn("good"), 0, nullptr);
  full.begin({});
  good.begin({});
  recorder.flush();
  {
    const test::FileSizeLimit limit(std::filesystem::file_size(store.file("full/steps.csv")) + 1);
    full.end({});
    CHECK_THROWS_AS(recorder.flush(), RunError);
  }
  CHECK_THAT(full.missing().value_or(""), Contains("steps.csv of this run could not be written"));
  CHECK_FALSE(full.missing());
  CHECK_FALSE(good.missing());
}
