// Sums over replicas: threads of this process on the loopback interface, and processes, which this
// program starts from itself, so that a test can kill them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/core/random.h"
#include "common/replicas/gradient_reducer.h"
#include "common/replicas/group_channel.h"
#include "tests/daemon/process.h"
#include "tests/support/error_code.h"
#include "tests/support/network/replica_servers.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;
using test::Process;
using test::ReplicaServers;
using Floats = std::vector<float>;
using Reducer = std::unique_ptr<GradientReducer>;

constexpr auto kPatience = 60s;
const std::string kName = "run 1, attempt 1, token 0123456789abcdef";

// Calls that wait for `done`.
void reduceNow(GradientReducer& reducer, std::uint64_t step, std::span<float> values) {
  std::promise<void> promise;
  reducer.reduce(step, values, [&](const std::exception_ptr& error) {
    error ? promise.set_exception(error) : promise.set_value();
  });
  promise.get_future().get();
}

Floats randomFloats(std::size_t size, std::uint64_t seed) {
  Floats values(size);
  const RandomKey key = randomKey(seed, "gradients");
  for (std::size_t j = 0; j < size; ++j) {
    const std::uint64_t bits = randomBits(key, j);
    // Exponents that differ, so that the order of the sum matters.
    values[j] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)),
                           static_cast<int>(bits >> 32 & 15) - 40);
  }
  return values;
}

Floats serialSum(const std::vector<Floats>& all) {
  Floats sum = all.at(0);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += all[rank][j];
  }
  return sum;
}

bool sameBits(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

std::vector<Reducer> joinAll(const ReplicaServers& servers, const std::string& name = kName) {
  std::vector<std::future<Reducer>> joining;
  for (std::size_t rank = 0; rank < servers.size(); ++rank) {
    joining.push_back(std::async(std::launch::async, [group = servers.group(rank), name] {
      return joinReplicas(group, name);
    }));
  }
  std::vector<Reducer> reducers;
  for (auto& one : joining) reducers.push_back(one.get());
  return reducers;
}

// Calls reduce() in all replicas at once; returns the code of each one's error.
std::vector<std::string> reduceAll(const std::vector<Reducer>& reducers, std::uint64_t step,
                                   std::vector<Floats>& values) {
  std::vector<std::future<std::string>> calls;
  for (std::size_t rank = 0; rank < reducers.size(); ++rank) {
    calls.push_back(std::async(std::launch::async, [&, rank] {
      return errorCode([&] { reduceNow(*reducers[rank], step, values[rank]); });
    }));
  }
  std::vector<std::string> codes;
  for (auto& call : calls) codes.push_back(call.get());
  return codes;
}

void checkSum(const std::vector<Reducer>& reducers, std::size_t size, std::uint64_t step) {
  CAPTURE(reducers.size(), size);
  std::vector<Floats> values;
  for (std::size_t rank = 0; rank < reducers.size(); ++rank) {
    values.push_back(randomFloats(size, 100 * step + rank));
  }
  const Floats expected = serialSum(values);
  for (const std::string& code : reduceAll(reducers, step, values)) CHECK(code.empty());
  for (const Floats& sum : values) CHECK(sameBits(sum, expected));
}

TEST_CASE("all replicas get the bits of a serial sum") {
  const std::size_t replicas = GENERATE(1, 2, 3, 4);
  const ReplicaServers servers(replicas);
  const auto reducers = joinAll(servers);
  std::uint64_t step = 0;
  // 256 Ki values are a slice; a round has one slice per replica.
  const std::size_t slice = 256 << 10;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{5},
                                 std::size_t{1001}, slice * replicas - 1, slice * replicas,
                                 slice * replicas + 1, 7 * slice * replicas + 12345}) {
    checkSum(reducers, size, ++step);
  }
}

TEST_CASE("infinity, NaN, zeros and subnormal numbers are summed like other values") {
  const ReplicaServers servers(3);
  const auto reducers = joinAll(servers);
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<Floats> values = {{infinity, infinity, nan, -0.0f, tiny, 1},
                                {1, -infinity, 1, -0.0f, tiny, 2},
                                {2, 1, 1, -0.0f, tiny, 3}};
  const Floats expected = serialSum(values);
  reduceAll(reducers, 1, values);
  for (const Floats& sum : values) {
    CHECK(sum[0] == infinity);
    CHECK(std::isnan(sum[1]));
    CHECK(std::isnan(sum[2]));
    CHECK(std::signbit(sum[3]));
    CHECK(sum[4] == 3 * tiny);
    CHECK(sum[5] == 6);
    CHECK(sameBits(sum, values[0]));
  }
}

TEST_CASE("a call may be made by the previous call's function") {
  const ReplicaServers servers(2);
  const auto reducers = joinAll(servers);
  Floats values[2] = {{1}, {2}};
  std::promise<float> sums[2];
  for (std::size_t rank = 0; rank < 2; ++rank) {
    reducers[rank]->reduce(1, values[rank], [&, rank](const std::exception_ptr&) {
      reducers[rank]->reduce(2, values[rank], [&, rank](const std::exception_ptr&) {
        sums[rank].set_value(values[rank][0]);
      });
    });
  }
  for (auto& sum : sums) CHECK(sum.get_future().get() == 6);
}

TEST_CASE("a replica waits for a slower one for longer than the timeout") {
  const ReplicaServers servers(2, 1s);
  const auto reducers = joinAll(servers);
  Floats values[2] = {{1}, {2}};
  auto first = std::async(std::launch::async, [&] { reduceNow(*reducers[0], 1, values[0]); });
  CHECK(first.wait_for(2500ms) == std::future_status::timeout);
  reduceNow(*reducers[1], 1, values[1]);
  first.get();
  CHECK(values[0][0] == 3);
}

TEST_CASE("several groups of the same servers work at the same time") {
  const ReplicaServers servers(2);
  const auto first = joinAll(servers, "first");
  auto second = joinAll(servers, "second");
  auto other = std::async(std::launch::async, [&] {
    for (std::uint64_t step = 1; step <= 5; ++step) {
      std::vector<Floats> values(2, Floats(500000, 1));
      reduceAll(second, step, values);
      if (values[0] != Floats(500000, 2)) return false;
    }
    return true;
  });
  for (std::uint64_t step = 1; step <= 5; ++step) checkSum(first, 700001, step);
  CHECK(other.get());
  second.clear();
  checkSum(first, 1000, 6);
}

TEST_CASE("calls that differ fail in all replicas") {
  const ReplicaServers servers(3);
  const auto reducers = joinAll(servers);
  std::vector<Floats> values(3, Floats(1000, 1));
  std::vector<std::string> codes;
  SECTION("in size") {
    values[1].resize(999);
    codes = reduceAll(reducers, 1, values);
  }
  SECTION("in step") {
    std::vector<std::future<std::string>> calls;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      calls.push_back(std::async(std::launch::async, [&, rank] {
        return errorCode([&] { reduceNow(*reducers[rank], rank == 2 ? 2 : 1, values[rank]); });
      }));
    }
    for (auto& call : calls) codes.push_back(call.get());
  }
  CHECK(codes == std::vector<std::string>(3, "replica-differs"));
  CHECK(reduceAll(reducers, 2, values) == std::vector<std::string>(3, "replica-differs"));
}

TEST_CASE("abort ends pending and later calls of all replicas") {
  const std::size_t replicas = GENERATE(1, 2, 3);
  const ReplicaServers servers(replicas);
  auto reducers = joinAll(servers);
  std::vector<Floats> values(replicas, Floats(1000, 1));
  std::vector<std::future<std::string>> calls;
  for (std::size_t rank = 1; rank < replicas; ++rank) {
    calls.push_back(std::async(std::launch::async, [&, rank] {
      return errorCode([&] { reduceNow(*reducers[rank], 1, values[rank]); });
    }));
  }
  const bool isDestroyed = GENERATE(false, true);
  if (isDestroyed) {
    reducers[0].reset();
  } else {
    reducers[0]->abort();
    CHECK(errorCode([&] { reduceNow(*reducers[0], 1, values[0]); }) == "replica-lost");
  }
  for (auto& call : calls) CHECK(call.get() == "replica-lost");
}

TEST_CASE("abort ends an exchange of values") {
  const ReplicaServers servers(2);
  const auto reducers = joinAll(servers);
  std::vector<Floats> values(2, Floats(std::size_t{64} << 20, 1));  // 256 MiB
  auto codes = std::async(std::launch::async, [&] { return reduceAll(reducers, 1, values); });
  // Until replica 1 has the sum of the first value, and not that of the last one.
  while (std::atomic_ref(values[1].front()).load() == 1) std::this_thread::yield();
  reducers[0]->abort();
  const SteadyTime start = now();
  CHECK(codes.get() == std::vector<std::string>(2, "replica-lost"));
  CHECK(secondsSince(start) < 10);
}

TEST_CASE("a reducer that is destroyed ends its pending call") {
  const ReplicaServers servers(2);
  auto reducers = joinAll(servers);
  Floats values(10, 1);
  std::promise<std::string> code;
  reducers[0]->reduce(1, values, [&](const std::exception_ptr& error) {
    code.set_value(errorCode([&] { std::rethrow_exception(error); }));
  });
  reducers[0].reset();
  CHECK(code.get_future().get() == "replica-lost");
}

std::set<std::string> threadsOfThisProcess() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(entry.path().filename());
  }
  return threads;
}

// The value of a line of /proc/PID/status; empty if the thread has ended.
std::string statusOf(const std::string& thread, const std::string& name) {
  std::ifstream file("/proc/self/task/" + thread + "/status");
  for (std::string word; file >> word;) {
    if (word == name && file >> word) return word;
  }
  return {};
}

TEST_CASE("all threads of the reducer and of Gloo block SIGPIPE") {
  const ReplicaServers servers(2);
  const auto earlier = joinAll(servers, "earlier");  // starts the listener's thread that resolves
  const auto before = threadsOfThisProcess();
  const auto reducers = joinAll(servers);
  std::vector<Floats> values(2, Floats(10, 1));
  reduceAll(reducers, 1, values);
  std::size_t blocking = 0;
  for (const std::string& thread : threadsOfThisProcess()) {
    // The threads that joined may still be ending.
    const SteadyTime deadline = now() + 5s;
    const auto isBlocking = [&] {
      const std::string mask = statusOf(thread, "SigBlk:");
      return !mask.empty() && (std::stoull(mask, nullptr, 16) >> (SIGPIPE - 1) & 1) != 0;
    };
    if (before.contains(thread)) continue;
    while (!isBlocking() && !statusOf(thread, "Name:").empty() && now() < deadline) {
      std::this_thread::yield();
    }
    CAPTURE(statusOf(thread, "Name:"), statusOf(thread, "State:"));
    const bool hasEnded = statusOf(thread, "Name:").empty();
    CHECK((hasEnded || isBlocking()));
    blocking += isBlocking();
  }
  CHECK(blocking >= 4);  // of each replica: the reducer's and at least one of Gloo's
}

TEST_CASE("replicas without a listener use their own ports") {
  const std::vector<std::string> hosts = ReplicaServers(2).hosts();
  std::vector<std::future<Reducer>> joining;
  for (int rank = 0; rank < 2; ++rank) {
    joining.push_back(std::async(std::launch::async, [=] {
      return joinReplicas({hosts, rank, 30s}, kName);
    }));
  }
  std::vector<Reducer> reducers;
  for (auto& one : joining) reducers.push_back(one.get());
  checkSum(reducers, 1000, 1);
}

TEST_CASE("joining ends when it is stopped") {
  const ReplicaServers servers(2, 60s);
  const std::size_t rank = GENERATE(0, 1);
  std::stop_source stop;
  auto joining = std::async(std::launch::async, [&] {
    return errorCode([&] { joinReplicas(servers.group(rank), kName, stop.get_token()); });
  });
  CHECK(joining.wait_for(300ms) == std::future_status::timeout);
  const SteadyTime start = now();
  stop.request_stop();
  CHECK_FALSE(joining.get().empty());
  CHECK(secondsSince(start) < 10);
  CHECK_FALSE(
      errorCode([&] { joinReplicas(servers.group(rank), kName, stop.get_token()); }).empty());
  CHECK(secondsSince(start) < 20);
}

TEST_CASE("a replica that Gloo cannot connect to is unreachable") {
  const ReplicaServers servers(2, 2s);
  const SteadyTime start = now();
  auto zero = std::async(std::launch::async, [&] { joinReplicas(servers.group(0), kName); });
  SECTION("because it joins and does nothing more") {
    const GroupChannel channel(servers.group(1), kName, [] {});
    CHECK(errorCode([&] { zero.get(); }) == "replica-unreachable");
  }
  SECTION("because its address is not its machine's") {
    ReplicaGroup group = servers.group(1);
    group.hosts[1] = "192.0.2.1:4810";
    CHECK(errorCode([&] { joinReplicas(group, kName); }) == "replica-unreachable");
    CHECK(errorCode([&] { zero.get(); }) == "replica-unreachable");
  }
  CHECK(secondsSince(start) < 15);
}

// Gloo itself would wait for five times its timeout.
TEST_CASE("a replica that ends while Gloo connects ends the joining") {
  using namespace std::string_literals;
  const ReplicaServers servers(2, 600s);
  auto zero = std::async(std::launch::async, [&] { joinReplicas(servers.group(0), kName); });
  {
    GroupChannel channel(servers.group(1), kName, [] {});
    // Replica 0's own address with a port on which nobody listens.
    std::string address = channel.get("gloo/0/0", kPatience);
    const std::size_t host = address.find("\x7f\0\0\x01"s);
    REQUIRE(host < address.size());
    address[host - 2] = '\xff';
    address[host - 1] = '\xff';
    channel.set("gloo/0/1", address);
    CHECK(channel.get("gloo/0/1", kPatience) == address);
  }
  REQUIRE(zero.wait_for(kPatience) == std::future_status::ready);
  CHECK(errorCode([&] { zero.get(); }) == "replica-unreachable");
}

// ---- Replicas in processes of their own ----

// Rank, number of replicas, and what to do, for the process that runs the hidden test below.
Process startReplica(std::size_t rank, const std::vector<std::string>& hosts,
                     const std::string& script) {
  std::string list;
  for (const std::string& host : hosts) list += host + " ";
  return Process::start({"/proc/self/exe", "[.replica]"}, {{"REPLICA_RANK", std::to_string(rank)},
                                                           {"REPLICA_HOSTS", list},
                                                           {"REPLICA_SCRIPT", script}});
}

// Sums until it fails; prints each step.
TEST_CASE("a replica of the tests", "[.replica]") {
  if (std::getenv("REPLICA_HOSTS") == nullptr) return;
  std::istringstream list(std::getenv("REPLICA_HOSTS"));
  const std::vector<std::string> hosts{std::istream_iterator<std::string>(list), {}};
  const int rank = std::stoi(std::getenv("REPLICA_RANK"));
  const std::string script = std::getenv("REPLICA_SCRIPT");
  const auto reducer = joinReplicas({hosts, rank, 4s}, kName);
  std::cout << "joined" << std::endl;
  const std::string code = errorCode([&] {
    for (std::uint64_t step = 1;; ++step) {
      Floats values(script == "large" ? 8 << 20 : 1000, 1);
      reduceNow(*reducer, step, values);
      if (values.back() != static_cast<float>(hosts.size())) throw RunError("wrong-sum", "wrong");
      std::cout << "step " << step << std::endl;
    }
  });
  std::cout << "ended: " << code << std::endl;
}

TEST_CASE("a lost process ends the others' calls in bounded time") {
  const std::size_t lost = GENERATE(0, 1, 2);
  const int number = GENERATE(SIGKILL, SIGSTOP);
  // Small sums are lost between calls, large ones in an exchange.
  const std::string script = GENERATE("small", "large");
  CAPTURE(lost, number, script);
  const std::vector<std::string> hosts = ReplicaServers(3).hosts();
  std::vector<Process> replicas;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    replicas.push_back(startReplica(rank, hosts, script));
  }
  for (const Process& replica : replicas) REQUIRE(replica.waitForOutput("step 3\n", kPatience));
  const SteadyTime start = now();
  replicas[lost].signal(number);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    if (rank == lost) continue;
    CHECK(replicas[rank].waitForOutput("ended: replica-lost", kPatience));
    CHECK(replicas[rank].wait(kPatience) == 0);  // SIGPIPE would end it
  }
  // The timeout is 4 s; the sockets' buffers may hold more of an exchange.
  CHECK(secondsSince(start) < (number == SIGKILL ? 8 : 20));
}

// The ports on which another process listens.
std::vector<std::uint16_t> listeningPorts(pid_t pid) {
  std::vector<std::string> sockets;
  for (int fd = 3; fd < 200; ++fd) {
    char target[64] = {};
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    if (::readlink(path.c_str(), target, sizeof target - 1) > 0) sockets.push_back(target);
  }
  std::vector<std::uint16_t> ports;
  std::ifstream table("/proc/" + std::to_string(pid) + "/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream row(line);
    std::vector<std::string> cells{std::istream_iterator<std::string>(row), {}};
    const bool isListening = cells.at(3) == "0A";
    const std::string name = "socket:[" + cells.at(9) + "]";
    if (!isListening || std::find(sockets.begin(), sockets.end(), name) == sockets.end()) continue;
    ports.push_back(static_cast<std::uint16_t>(
        std::stoi(cells[1].substr(cells[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
}

TEST_CASE("garbage on all ports of the replicas does not end a run") {
  const std::vector<std::string> hosts = ReplicaServers(2).hosts();
  std::vector<Process> replicas;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    replicas.push_back(startReplica(rank, hosts, "small"));
  }
  for (const Process& replica : replicas) REQUIRE(replica.waitForOutput("step 3\n", kPatience));
  namespace asio = boost::asio;
  asio::io_context io;
  std::vector<asio::ip::tcp::socket> strangers;
  std::size_t ports = 0;
  for (const Process& replica : replicas) {
    for (const std::uint16_t port : listeningPorts(replica.pid())) {
      ++ports;
      for (const std::string& bytes :
           {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(8, '\0'),
            std::string(8, '\1'), std::string(1000, '\0'), std::string(1000, '\xff')}) {
        asio::ip::tcp::socket& socket = strangers.emplace_back(io);
        socket.connect({asio::ip::address_v4::loopback(), port});
        boost::system::error_code ignored;
        asio::write(socket, asio::buffer(bytes), ignored);
      }
    }
  }
  CHECK(ports >= 2);
  for (const Process& replica : replicas) {
    CHECK(replica.waitForOutput("step 1000\n", kPatience));
    CHECK(replica.output().find("ended") == std::string::npos);
  }
}

}  // namespace
}  // namespace cleave
