// After many clients, some of which were killed, a server uses no more resources than before. No
// client affects another client's result.
#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <random>
#include <thread>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kClients = 100;
constexpr int kWarmUp = 8;     // clients after which the server's pools have reached their size
constexpr int kOneByOne = 60;  // clients that run one by one
constexpr int kAtOnce = 8;     // the remaining clients, in waves of this size
constexpr int kKillOneIn = 4;
constexpr unsigned kSeed = 1;
// Maximum growth over all clients after the warm-up. The weights and gradients of a client take 0.5
// MiB at the server, and those of the large client 32 MiB; none of this may be kept. Measured: 0.7
// MiB.
constexpr std::int64_t kMaxGrowthKiB = 4096;
// Maximum growth from the start to the end of the warm-up. It includes memory that libraries
// allocate at their first use, but not the 100 MiB or more of the large client. Measured: 16 MiB.
constexpr std::int64_t kMaxFirstKiB = 32768;

const Arguments kRun = {"--set", "model.width=256", "--set", "threads={client: 1, server: 1}"};

// Runs a client that trains to the end, or is killed at a random time after its run has started.
struct Client {
  std::string folder;
  bool isVictim;
  Process process;
};

class Crowd {
 public:
  Crowd(const TemporaryFolder& folder, const TestServer& server)
      : folder_(folder), server_(server) {}

  Client start() {
    const std::string folder = folder_.path("client-" + std::to_string(++count_));
    const bool isVictim = count_ % kKillOneIn == 0;
    Arguments arguments = kRun;
    arguments.insert(arguments.end(), {"--server", server_.address()});
    if (isVictim) arguments.insert(arguments.end(), {"--set", "train.epochs=1000"});
    return {folder, isVictim, startClient("train", folder, arguments)};
  }

  void end(Client& client) {
    if (!client.isVictim) {
      REQUIRE(finish(client.process).code == 0);
      survivors.push_back(client.folder);
      return;
    }
    REQUIRE(client.process.waitForOutput("connected to", kPatience));
    std::this_thread::sleep_for(milliseconds(random_() % 200));
    client.process.signal(SIGKILL);
    CHECK(finish(client.process).code == 128 + SIGKILL);
  }

  // Runs a client with a larger model, which trains to the end.
  void runLarge() {
    Arguments arguments = kRun;
    arguments.insert(arguments.end(), {"--server", server_.address(), "--set", "model.width=2048"});
    const std::string folder = folder_.path("large-" + std::to_string(count_));
    CHECK(runClient("train", folder, arguments).code == 0);
  }

  std::vector<std::string> survivors;

 private:
  const TemporaryFolder& folder_;
  const TestServer& server_;
  int count_ = 0;
  std::mt19937 random_{kSeed};
};

// Waits until the server has closed its last session, as its number of descriptors shows, and has
// returned freed memory, so that its memory use no longer changes. Returns the server's resources.
Resources settled(TestServer& server, std::size_t descriptors) {
  constexpr int kSameReadings = 10;
  const auto start = steady_clock::now();
  Resources held = resourcesOf(server.process());
  for (int same = 0; same < kSameReadings && steady_clock::now() - start < kPatience;) {
    std::this_thread::sleep_for(milliseconds(50));
    const Resources next = resourcesOf(server.process());
    const bool isSame = next.descriptors <= descriptors && next.residentKiB == held.residentKiB;
    same = isSame ? same + 1 : 0;
    held = next;
  }
  return held;
}

TEST_CASE("100 clients, some of them killed, do not affect each other and leave no traces") {
  const TemporaryFolder folder;
  REQUIRE(runClient("train", folder.path("alone"), kRun).code == 0);
  const std::string alone = readTensors(folder.path("alone") + "/model.safetensors");

  // The limit is twice the size of a wave, because the session of a killed client may still be
  // closing when the next client starts.
  TestServer server(folder, {"--set", "limits.sessions=16", "--set", "limits.park_seconds=0"});
  const Resources fresh = resourcesOf(server.process());
  Crowd crowd(folder, server);
  for (int client = 0; client < kWarmUp; ++client) {
    Client one = crowd.start();
    crowd.end(one);
  }
  crowd
      .runLarge();  // runs during the warm-up, because libraries keep buffers of their maximum size
  const Resources warm = settled(server, fresh.descriptors);

  // Clients run one after another, but overlap: the next client starts while the previous one
  // trains.
  std::deque<Client> running;
  for (int client = kWarmUp; client < kOneByOne; ++client) {
    running.push_back(crowd.start());
    if (running.size() < 2) continue;
    crowd.end(running.front());
    running.pop_front();
  }
  crowd.end(running.front());
  const Resources later = settled(server, fresh.descriptors);

  crowd.runLarge();
  for (int client = kOneByOne; client < kClients; client += kAtOnce) {
    std::vector<Client> wave;
    for (int i = 0; i < kAtOnce; ++i) wave.push_back(crowd.start());
    for (Client& one : wave) crowd.end(one);
  }
  const Resources last = settled(server, fresh.descriptors);
  INFO("server's resident KiB: " << fresh.residentKiB << " fresh, " << warm.residentKiB << " warm, "
                                 << later.residentKiB << " later, " << last.residentKiB << " last");

  CHECK(warm.residentKiB - fresh.residentKiB <= kMaxFirstKiB);
  for (const Resources& held : {later, last}) {
    CHECK(held.residentKiB - warm.residentKiB <= kMaxGrowthKiB);
    CHECK(held.descriptors == fresh.descriptors);
    // Codec threads start on demand; up to one per core is kept, and the others exit.
    CHECK(held.threads <= warm.threads + std::thread::hardware_concurrency());
  }
  CHECK(crowd.survivors.size() == kClients - kClients / kKillOneIn);
  for (const std::string& survivor : crowd.survivors) {
    INFO(survivor);
    CHECK((readTensors(survivor + "/model.safetensors") == alone));
  }
}

}  // namespace
}  // namespace cleave::test
