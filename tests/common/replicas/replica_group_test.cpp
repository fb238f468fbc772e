// The group of replicas over real sockets: who may join, what reaches whom, and how a group ends.
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/replicas/group_channel.h"
#include "common/replicas/group_hub.h"
#include "common/replicas/replica_listener.h"
#include "tests/support/error_code.h"
#include "tests/support/network/replica_servers.h"
#include "tests/support/network/sockets.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using test::readError;
using Channel = std::unique_ptr<GroupChannel>;

const std::string kName = "run 1, attempt 1, token 0123456789abcdef";

// Only the first server's port is used.
class Servers : public test::ReplicaServers {
 public:
  using ReplicaServers::ReplicaServers;

  // Joins as `rank`, on another thread.
  std::future<Channel> join(
      std::size_t rank, const std::string& name = kName, std::function<void()> lost = [] {}) const {
    return std::async(std::launch::async, [=, group = group(rank)] {
      return std::make_unique<GroupChannel>(group, name, lost);
    });
  }
  std::vector<Channel> joinAll(const std::string& name = kName) const {
    std::vector<std::future<Channel>> joining;
    for (std::size_t rank = 0; rank < size(); ++rank) joining.push_back(join(rank, name));
    std::vector<Channel> channels;
    for (auto& one : joining) channels.push_back(one.get());
    return channels;
  }

  // A connection to replica 0's group port that is not a GroupChannel.
  tcp::socket stranger(const std::string& bytes) {
    tcp::socket socket(io_);
    socket.connect({asio::ip::address_v4::loopback(), group(0).listener->port()});
    asio::write(socket, asio::buffer(bytes));
    return socket;
  }
  // A connection that the hub has accepted as `rank`. Before replica 0 joins, it is closed.
  tcp::socket member(std::size_t rank) {
    for (;;) {
      tcp::socket socket = stranger(encodeHello({memberDigest(kName), rank, size()}));
      char answer = 0;
      boost::system::error_code error;
      asio::read(socket, asio::buffer(&answer, 1), error);
      if (!error) return socket;
    }
  }

 private:
  asio::io_context io_;
};

void checkExchange(const std::vector<Channel>& channels) {
  for (std::size_t rank = 0; rank < channels.size(); ++rank) {
    channels[rank]->set("key/" + std::to_string(rank), "value " + std::to_string(rank));
  }
  for (const Channel& channel : channels) {
    for (std::size_t rank = 0; rank < channels.size(); ++rank) {
      CHECK(channel->take("key/" + std::to_string(rank)) == "value " + std::to_string(rank));
    }
    CHECK_FALSE(channel->has("key/0"));
  }
}

// A message as on the wire (group_connection.h).
std::string framed(GroupMessage::Kind kind, std::size_t size, const std::string& text) {
  std::string bytes;
  for (unsigned shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(size >> shift);
  return bytes + static_cast<char>(kind) + text;
}

TEST_CASE("a value reaches all replicas") {
  const std::size_t replicas = GENERATE(2, 3, 4);
  Servers servers(replicas);
  const std::vector<Channel> channels = servers.joinAll();
  checkExchange(channels);
  channels[0]->set("large", std::string(16 << 10, 'x'));
  CHECK(channels[1]->get("large", 30s).size() == 16 << 10);
  CHECK(channels[1]->has("large"));  // get() keeps it
  CHECK_THROWS_AS(channels[0]->set("larger", std::string((16 << 10) + 1, 'x')), std::length_error);
}

TEST_CASE("replica 0 may join last") {
  Servers servers(2);
  auto first = servers.join(1);
  CHECK(first.wait_for(300ms) == std::future_status::timeout);
  auto second = servers.join(0);
  std::vector<Channel> channels;
  channels.push_back(second.get());
  channels.push_back(first.get());
  checkExchange(channels);
}

TEST_CASE("two groups use the same ports at the same time") {
  Servers servers(3);
  const std::vector<Channel> first = servers.joinAll("first");
  std::vector<Channel> second = servers.joinAll("second");
  checkExchange(first);
  checkExchange(second);
  second.clear();
  checkExchange(first);
}

TEST_CASE("values that were set before a replica leaves arrive") {
  Servers servers(3);
  std::vector<Channel> channels = servers.joinAll();
  for (int j = 0; j < 200; ++j) channels[0]->set(std::to_string(j), std::string(10000, 'x'));
  channels[0].reset();
  for (int j = 0; j < 200; ++j) REQUIRE(channels[2]->take(std::to_string(j)).size() == 10000);
  CHECK(errorText([&] { channels[2]->take("another"); }).find("replica 0") != std::string::npos);
}

TEST_CASE("a lost replica ends the group for all others") {
  Servers servers(3);
  std::promise<void> lost;
  auto zero = servers.join(0, kName, [&] { lost.set_value(); });
  auto one = servers.join(1);
  const SteadyTime start = now();
  Channel two;
  SECTION("its connection ends") {
    tcp::socket raw = servers.member(2);
    const Channel channel = zero.get();
    raw.shutdown(tcp::socket::shutdown_send);
    CHECK(errorText([&] { channel->take("key"); }) ==
          "replica 2 (" + servers.hosts()[2] + "): its connection ended");
    CHECK(errorCode([&] { one.get()->take("key"); }) == "replica-lost");
    lost.get_future().get();
  }
  SECTION("it leaves") {
    two = servers.join(2).get();
    two->leave();
    CHECK(errorCode([&] { two->take("key"); }) == "replica-lost");
    CHECK(errorCode([&] { zero.get()->take("key"); }) == "replica-lost");
    CHECK(errorCode([&] { one.get()->take("key"); }) == "replica-lost");
  }
  SECTION("it sends something that is not a message") {
    const std::string bytes = GENERATE(framed(GroupMessage::Kind::value, 1 << 20, ""),
                                       framed(GroupMessage::Kind::value, 1, ""),
                                       framed(GroupMessage::Kind::value, 3, "\x7fx"),
                                       framed(static_cast<GroupMessage::Kind>(77), 3, "  "));
    tcp::socket raw = servers.member(2);
    const Channel channel = zero.get();
    asio::write(raw, asio::buffer(bytes));
    CHECK(errorText([&] { channel->take("key"); }) ==
          "replica 2 (" + servers.hosts()[2] + "): it sent something that is not a message");
    CHECK(errorCode([&] { one.get()->take("key"); }) == "replica-lost");
  }
  SECTION("it sends more values than the others keep") {
    two = servers.join(2).get();
    const Channel channel = zero.get();
    for (int j = 0; j < 2000; ++j) {
      try {
        two->set(std::to_string(j), std::string(16 << 10, 'x'));
      } catch (const Error&) {
      }
    }
    CHECK(errorCode([&] { channel->take("key"); }) == "replica-lost");
    CHECK(errorCode([&] { one.get()->take("key"); }) == "replica-lost");
  }
  CHECK(secondsSince(start) < 20);  // without a timeout
}

TEST_CASE("a replica that no longer replies is lost after the timeout") {
  Servers servers(2, 1s);
  auto zero = servers.join(0);
  tcp::socket silent = servers.member(1);
  const Channel channel = zero.get();
  CHECK(errorText([&] { channel->take("key"); }) ==
        "replica 1 (" + servers.hosts()[1] + "): it has not replied for 1 s");
}

TEST_CASE("replicas that reply are not lost, however long they take") {
  Servers servers(2, 1s);
  const std::vector<Channel> channels = servers.joinAll();
  CHECK(errorCode([&] { channels[0]->get("key", 3s); }) == "replica-lost");  // nobody has set it
  checkExchange(channels);
}

TEST_CASE("a replica that is missing is named") {
  const Servers servers(4, 4s);  // enough for replica 2 on a busy machine
  auto zero = servers.join(0);
  // If replica 2 happens to start first, it still waits when replica 0 stops waiting.
  ReplicaGroup patient = servers.group(2);
  patient.timeout = 6s;
  auto two = std::async(std::launch::async,
                        [&] { return std::make_unique<GroupChannel>(patient, kName, [] {}); });
  const std::string expected = "replica 1 (" + servers.hosts()[1] + "), replica 3 (" +
                               servers.hosts()[3] + ") have not joined within 4 s";
  CHECK(errorText([&] { zero.get(); }) == expected);
  CHECK(errorCode([&] { two.get(); }) == "replica-unreachable");
}

TEST_CASE("without replica 0, joining ends after the timeout") {
  Servers servers(2, 1s);
  const SteadyTime start = now();
  SECTION("its server does not know the group") {
    CHECK(errorCode([&] { servers.join(1).get(); }) == "replica-unreachable");
  }
  SECTION("its server does not run") {
    ReplicaGroup group = servers.group(1);
    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    group.hosts[0] = "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    SECTION("nobody listens") {
      acceptor.close();
      CHECK(errorText([&] { GroupChannel(group, kName, [] {}); }) ==
            "replica 0 (" + group.hosts[0] + ") cannot be reached within 1 s: Connection refused");
    }
    SECTION("another program listens, and says nothing") {
      CHECK(errorCode([&] { GroupChannel(group, kName, [] {}); }) == "replica-unreachable");
    }
    SECTION("another program listens, and does not know the name") {
      auto joining = std::async(std::launch::async, [&] { GroupChannel(group, kName, [] {}); });
      tcp::socket socket = acceptor.accept();
      const std::string proof(32, 'x');
      asio::write(socket, asio::buffer(framed(GroupMessage::Kind::accepted, 34, " " + proof)));
      CHECK(errorCode([&] { joining.get(); }) == "replica-unreachable");
    }
  }
  CHECK(secondsSince(start) < 15);
}

TEST_CASE("replicas that disagree about their number do not join") {
  Servers servers(2, 1s);
  auto zero = servers.join(0);
  ReplicaGroup group = servers.group(1);
  group.hosts.push_back("127.0.0.1:1");
  CHECK(errorText([&] { GroupChannel(group, kName, [] {}); }) ==
        "the replicas differ: replica 0 has 2 replicas, and this one is replica 1 of 3");
  CHECK(errorCode([&] { zero.get(); }) == "replica-unreachable");
}

TEST_CASE("a second connection of the same rank does not end the group") {
  Servers servers(3, 2s);
  auto zero = servers.join(0);
  SECTION("while the group waits for others") {
    auto one = servers.join(1);
    std::future<Channel> joining[2] = {servers.join(2), servers.join(2)};
    std::string codes;
    std::vector<Channel> channels;
    channels.push_back(zero.get());
    channels.push_back(one.get());
    for (auto& two : joining) {
      codes += errorCode([&] { channels.push_back(two.get()); });
    }
    CHECK(codes == "replica-differs");
    REQUIRE(channels.size() == 3);
    checkExchange(channels);
  }
  SECTION("after all have joined") {
    auto one = servers.join(1);
    auto two = servers.join(2);
    std::vector<Channel> channels;
    channels.push_back(zero.get());
    channels.push_back(one.get());
    channels.push_back(two.get());
    CHECK(errorCode([&] { servers.join(1).get(); }) == "replica-differs");
    checkExchange(channels);
  }
  SECTION("if the first one has ended") {
    tcp::socket early = servers.member(2);
    early.close();
    auto two = servers.join(2);
    CHECK(two.wait_for(300ms) == std::future_status::timeout);  // the group is not complete
    auto one = servers.join(1);
    std::vector<Channel> channels;
    channels.push_back(zero.get());
    channels.push_back(one.get());
    channels.push_back(two.get());
    checkExchange(channels);
  }
}

TEST_CASE("strangers neither join nor disturb") {
  Servers servers(2);
  std::vector<tcp::socket> strangers;
  const auto come = [&] {
    std::string hello = encodeHello({memberDigest(kName), 1, 2});
    strangers.push_back(servers.stranger("GET / HTTP/1.1\r\nHost: server\r\n\r\n"));
    strangers.push_back(servers.stranger(std::string(kHelloBytes, '\xff')));
    strangers.push_back(servers.stranger(hello.substr(0, kHelloBytes - 1)));
    hello[20] ^= 1;  // in the digest
    strangers.push_back(servers.stranger(hello));
    for (int j = 0; j < 200; ++j) strangers.push_back(servers.stranger(""));
  };
  come();
  auto zero = servers.join(0);
  come();
  auto one = servers.join(1);
  std::vector<Channel> channels;
  channels.push_back(zero.get());
  channels.push_back(one.get());
  come();
  checkExchange(channels);
  // The oldest ones were closed at once, the others after 5 s.
  for (tcp::socket& stranger : strangers) CHECK(readError(stranger));
  checkExchange(channels);
}

TEST_CASE("the group port's address is checked") {
  const ReplicaListener listener("127.0.0.1:0");
  const std::string used = "127.0.0.1:" + std::to_string(listener.port());
  CHECK(errorCode([&] { ReplicaListener{used}; }) == "port-in-use");
  CHECK(errorCode([&] { ReplicaListener{"192.0.2.1:4800"}; }) == "cannot-bind");
  CHECK(errorCode([&] { ReplicaListener{"4800"}; }) == "bad-address");
}

}  // namespace
}  // namespace cleave
