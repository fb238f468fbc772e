// The server's limits on connections, and its account of what it refuses.
#include <catch2/catch.hpp>
#include <vector>

#include "server/connection_limits.h"
#include "server/refusals.h"
#include "tests/error_code.h"

using namespace cleave;
using namespace std::chrono_literals;
using boost::asio::ip::make_address;

namespace {

struct Admitted {
  explicit Admitted(const ConnectionLimitSettings& settings) : limits(settings) {}

  // The code of the refusal; empty: it is open.
  std::string open(const std::string& address, SteadyTime time = {}) {
    try {
      tickets.push_back(limits.admit(make_address(address), time));
      return {};
    } catch (const Error& error) {
      retrySeconds = error.retrySeconds();
      return error.code();
    }
  }
  // How many more may be opened.
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

TEST_CASE("connections are limited in total and by address, and come back when they end") {
  Admitted server({.connections = 5, .connectionsPerAddress = 3});
  CHECK(server.count("10.0.0.1") == 3);
  CHECK(server.open("10.0.0.1") == "too-many-from-address");
  CHECK(server.retrySeconds > 0);
  CHECK(server.count("10.0.0.2") == 2);
  CHECK(server.open("10.0.0.2") == "too-many-connections");
  server.tickets.erase(server.tickets.begin());
  CHECK(server.open("10.0.0.1").empty());
}

TEST_CASE("an IPv6 subscriber is one address, and a mapped IPv4 address is itself") {
  Admitted server({.connectionsPerAddress = 2});
  CHECK(server.open("2001:db8:1:2::1").empty());
  CHECK(server.open("2001:db8:1:2:ffff::2").empty());
  CHECK(server.open("2001:db8:1:2::3") == "too-many-from-address");
  CHECK(server.open("2001:db8:1:3::1").empty());
  CHECK(server.count("::ffff:10.0.0.1") == 2);
  CHECK(server.open("10.0.0.1") == "too-many-from-address");
}

TEST_CASE("new connections come at a rate, with a burst, and no address takes all of it") {
  Admitted server({.perSecond = 10, .burst = 20, .perSecondPerAddress = 5});
  const SteadyTime start{};
  CHECK(server.count("10.0.0.1", start) == 10);
  CHECK(server.open("10.0.0.1", start) == "too-many-handshakes");
  CHECK(server.retrySeconds == 1);
  CHECK(server.count("10.0.0.2", start) == 10);
  CHECK(server.open("10.0.0.3", start) == "too-many-handshakes");  // the total
  CHECK(server.count("10.0.0.1", start + 1s) == 5);
  CHECK(server.count("10.0.0.3", start + 1s) == 5);
  CHECK(server.count("10.0.0.1", start + 1h) == 10);
}

TEST_CASE("addresses that are gone are forgotten, and come back as new") {
  Admitted server({.connections = 100000, .perSecond = 1e6, .burst = 1e6});
  const SteadyTime start{};
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const auto address = boost::asio::ip::address_v4(0x0A000000 + i);
    server.limits.admit(address, start + i * 1ms);
  }
  CHECK(server.open("10.0.0.1", start + 1h).empty());
}

TEST_CASE("every refusal is counted, and a flood of them is a line a second and reason") {
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
  refusals.flush(start + 1s);  // "999 more"
  CHECK(refusals.logged() == 3);
  refusals.flush(start + 5s);
  CHECK(refusals.logged() == 3);
  refusals.note("peer", slow, start + 5s);
  CHECK(refusals.logged() == 4);
}
