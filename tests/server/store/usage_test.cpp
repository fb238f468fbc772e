// The account of what each identity uses: its file, and what a server writes to it.

#include <boost/asio/thread_pool.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/run/temporary_folder.h"
#include "common/core/error.h"
#include "server/store/usage.h"
#include "tests/support/files/file_size_limit.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  std::string file() const { return path + "/usage.jsonl"; }
  std::vector<UsageLine> lines() {
    std::vector<UsageLine> all;
    damaged = readUsage(path, [&](UsageLine line) { all.push_back(std::move(line)); });
    return all;
  }

  std::size_t damaged = 0;

 private:
  const TemporaryFolder temporary_;

 public:
  const std::string path = temporary_.path();
};

UsageLine lineOf(const std::string& run, std::uint64_t steps) {
  return {"2026-01-31T12:34:56.789Z", "team \"b\"\n", run, {1, steps, 0.5, 100, 200}};
}

TEST_CASE("lines are read as they were written, also after a restart") {
  Folder folder;
  CHECK(UsageFile(folder.path).append(lineOf("a", 1)) == 0);
  CHECK(UsageFile(folder.path).append(lineOf("b", 2)) == 0);
  const auto lines = folder.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].identity == "team \"b\"\n");
  CHECK(lines[0].time == "2026-01-31T12:34:56.789Z");
  CHECK(lines[1].run == "b");
  CHECK(lines[1].usage == Usage{1, 2, 0.5, 100, 200});
  CHECK(folder.damaged == 0);
}

TEST_CASE("a line that a killed process left incomplete costs only itself") {
  Folder folder;
  UsageFile(folder.path).append(lineOf("a", 1));
  fs::resize_file(folder.file(), fs::file_size(folder.file()) - 10);
  UsageFile(folder.path).append(lineOf("b", 2));
  std::ofstream(folder.file(), std::ios::app) << "{\"time\": 5}\n[]\n" << std::string(5000, 'x');
  UsageFile(folder.path).append(lineOf("c", 3));
  const auto lines = folder.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].run == "b");
  CHECK(lines[1].run == "c");
  CHECK(folder.damaged == 4);
}

TEST_CASE("the files are rotated, and the oldest is removed") {
  Folder folder;
  UsageFile file(folder.path);
  for (int i = 0; i <= kUsageFiles; ++i) {
    file.append(lineOf(std::to_string(i), 1));
    fs::resize_file(folder.file(), kUsageFileBytes);  // the next line needs another file
  }
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == kUsageFiles);
  // Restores the first line of each file: what follows it is not a line.
  const auto lines = folder.lines();
  REQUIRE(lines.size() == kUsageFiles);
  CHECK(lines.front().run == "1");
  CHECK(lines.back().run == std::to_string(kUsageFiles));
}

TEST_CASE("lines that cannot be written are kept and written later, once") {
  Folder folder;
  UsageFile file(folder.path);
  REQUIRE(file.append(lineOf("a", 1)) == 0);
  {
    const test::FileSizeLimit full(fs::file_size(folder.file()) + 20);
    CHECK(file.append(lineOf("b", 2)) == EFBIG);
    CHECK(file.append(lineOf("c", 3)) == EFBIG);
  }
  CHECK(file.append(lineOf("d", 4)) == 0);
  std::string runs;
  for (const UsageLine& line : folder.lines()) runs += line.run;
  CHECK(runs == "abcd");
  CHECK(folder.damaged == 0);
}

TEST_CASE("lines that wait for the disk are added up per run, and for many runs per identity") {
  Folder folder;
  UsageFile file(folder.path);
  constexpr std::uint64_t kRuns = UsageFile::kMaxPendingRuns + 100;
  {
    const test::FileSizeLimit full(0);
    for (int i = 0; i < 3; ++i) CHECK(file.append(lineOf("a", 1)) == EFBIG);
    CHECK(folder.lines().empty());
  }
  REQUIRE(file.append(lineOf("b", 1)) == 0);
  const auto lines = folder.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].run == "a");
  CHECK(lines[0].usage == Usage{3, 3, 1.5, 300, 600});
  fs::remove(folder.file());
  {
    const test::FileSizeLimit full(0);
    for (std::uint64_t run = 0; run < kRuns; ++run) file.append(lineOf(std::to_string(run), 1));
  }
  REQUIRE(file.append(lineOf("0", 1)) == 0);
  std::uint64_t steps = 0, ofOthers = 0;
  for (const UsageLine& line : folder.lines()) {
    steps += line.usage.steps;
    if (line.run.empty()) ofOthers += line.usage.steps;
  }
  CHECK(steps == kRuns + 1);
  CHECK(ofOthers == 100);
}

TEST_CASE("a file that cannot be read is an error") {
  Folder folder;
  CHECK(folder.lines().empty());
  fs::create_directory(folder.path + "/usage.1.jsonl");
  CHECK_THROWS_AS(folder.lines(), UsageError);
}

TEST_CASE("a run's usage is written every ten minutes and at its end") {
  Folder folder;
  boost::asio::thread_pool thread{1};
  UsageBook book(folder.path, thread.get_executor());
  const SteadyTime start{};
  for (int second = 0; second < 1500; ++second) {
    const SteadyTime time = start + std::chrono::seconds(second);
    book.add("a", "run", {second == 0 ? 1u : 0u, 2, 0.5, 10, 20}, time);
    book.look(time);
  }
  book.add("b", "idle", {}, start);
  book.close("a", "run");
  book.close("a", "run");
  book.close("b", "idle");
  CHECK(book.totals().at("a") == Usage{1, 3000, 750, 15000, 30000});
  thread.join();
  const auto lines = folder.lines();
  REQUIRE(lines.size() == 3);
  Usage sum;
  for (const UsageLine& line : lines) sum += line.usage;
  CHECK(sum == Usage{1, 3000, 750, 15000, 30000});
  CHECK(lines[0].usage.steps == 1202);
}

TEST_CASE("a meter counts training steps, device time of this side, and bytes once") {
  UsageMeter meter;
  ActionSeconds actions{};
  actions[indexOf(ActionKind::bodyForward)] = 0.25;
  actions[indexOf(ActionKind::headForward)] = 9;
  LinkTotals totals;
  meter.connected();
  meter.finishedBatch(Phase::train, actions);
  meter.finishedBatch(Phase::eval, actions);
  totals.wireUp = 100;
  totals.controlDown = 7;
  CHECK(meter.take(totals) == Usage{1, 1, 0.5, 100, 7});
  totals.wireUp = 150;
  CHECK(meter.take(totals) == Usage{0, 0, 0, 50, 0});
}

}  // namespace
}  // namespace cleave
