// A long run takes no more memory than a short one, at either side.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <thread>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

constexpr int kSteps = 10000;
constexpr int kWarmUp = 2000;  // steps until pools and tables have reached their size
// Maximum growth over the remaining steps: 280 bytes per step, less than a step's records.
// Measured: 80 KiB.
constexpr std::int64_t kMaxGrowthKiB = 2048;

// The number of lines in a file that is being written.
std::int64_t linesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

TEST_CASE("the memory of client and server does not grow over 10,000 steps") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string run = folder.path("client");
  const Process client = startClient(
      "train", run,
      {"--server", server.address(), "--set", "train.max_steps=" + std::to_string(kSteps), "--set",
       "train.epochs=100000", "--set", "data.train.size=4096", "--set", "train.batch=8", "--set",
       "train.micro_batches=2", "--set", "model.width=16", "--set", "data.test.size=16"});
  std::optional<Resources> clientFirst;
  Resources clientLast;
  Resources serverFirst;
  Resources serverLast;
  std::size_t fewestThreads = std::numeric_limits<std::size_t>::max();  // of the client
  int samples = 0;
  while (!client.wait(std::chrono::milliseconds(250))) {
    const std::int64_t steps = linesOf(run + "/steps.csv");
    const Resources now = resourcesOf(client);
    if (now.threads == 0 || steps < kWarmUp)
      continue;  // a program has exited, or is still warming up
    if (!clientFirst) {
      clientFirst = now;
      serverFirst = resourcesOf(server.process());
    }
    // Sampling stops before the end of the run, when the client fetches the body's weights and
    // writes the whole model. The margin covers steps.csv, which lags behind by up to a second.
    if (steps > kSteps - 3000) continue;
    ++samples;
    clientLast = now;
    fewestThreads = std::min<std::size_t>(fewestThreads, now.threads);
    serverLast = resourcesOf(server.process());
  }
  const Ended ended = finish(client);
  REQUIRE(ended.code == 0);
  REQUIRE(clientFirst);
  REQUIRE(samples > 3);
  INFO("client " << clientFirst->residentKiB << " to " << clientLast.residentKiB << " KiB, server "
                 << serverFirst.residentKiB << " to " << serverLast.residentKiB << " KiB");

  CHECK(clientLast.residentKiB - clientFirst->residentKiB <= kMaxGrowthKiB);
  // A file that is being written may be open in either sample.
  CHECK(clientLast.descriptors <= clientFirst->descriptors + 1);
  // Several threads come and go, such as the loader's, which ends with the epoch's last batch.
  CHECK(fewestThreads <= clientFirst->threads);
  CHECK(serverLast.residentKiB - serverFirst.residentKiB <= kMaxGrowthKiB);
  CHECK(serverLast.descriptors <= serverFirst.descriptors + 1);
  CHECK(serverLast.threads == serverFirst.threads);
  const auto steps = readCsv(run + "/steps.csv");
  CHECK(std::count_if(steps.begin(), steps.end(),
                      [](const CsvRow& row) { return row.at("phase") == "train"; }) == kSteps);
}

}  // namespace
}  // namespace cleave::test
