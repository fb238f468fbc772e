// Tests the relay that other tests use. Comparisons of large buffers have extra parentheses, so
// that Catch does not print the buffers.
#include "tests/support/network/relay.h"

#include <poll.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <list>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/support/network/sockets.h"

namespace cleave::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

// A target behind a relay.
struct Setup {
  asio::io_context context;
  tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
  Relay relay{"127.0.0.1", acceptor.local_endpoint().port()};

  tcp::socket connect() {
    tcp::socket socket(context);
    socket.connect({asio::ip::address_v4::loopback(), relay.port()});
    return socket;
  }
  Ends open() {
    tcp::socket client = connect();
    return {std::move(client), acceptor.accept()};
  }
};

// Returns whether there is something to read or accept within a time that is long for loopback.
bool becomesReadable(int descriptor) {
  pollfd waiting = {descriptor, POLLIN, 0};
  return poll(&waiting, 1, 100) == 1;
}

// Writes until no more bytes are accepted. Returns the number of accepted bytes.
std::size_t writeUntilBlocked(tcp::socket& socket) {
  const Bytes bytes(1 << 20);
  socket.non_blocking(true);
  std::size_t total = 0;
  pollfd waiting = {socket.native_handle(), POLLOUT, 0};
  while (poll(&waiting, 1, 500) == 1) {
    error_code error;
    total += socket.write_some(asio::buffer(bytes), error);
    if (error && error != asio::error::would_block) FAIL(error.message());
  }
  return total;
}

TEST_CASE("bytes cross unchanged in both directions at once, and are counted exactly") {
  Setup setup;
  Ends ends = setup.open();
  const Bytes up = pattern(5'000'003, 1), down = pattern(3'000'001, 2);
  std::thread sendUp([&] { asio::write(ends.client, asio::buffer(up)); });
  std::thread sendDown([&] { asio::write(ends.server, asio::buffer(down)); });
  auto gotUp = std::async(std::launch::async, [&] { return readExactly(ends.server, up.size()); });
  const Bytes gotDown = readExactly(ends.client, down.size());
  CHECK((gotUp.get() == up));
  CHECK((gotDown == down));
  sendUp.join();
  sendDown.join();
  CHECK(setup.relay.bytesUp() == up.size());
  CHECK(setup.relay.bytesDown() == down.size());
}

TEST_CASE("connections do not mix, and counts are summed over connections") {
  Setup setup;
  std::list<Ends> all;
  for (std::uint32_t c = 0; c < 20; ++c) {
    all.push_back(setup.open());
    asio::write(all.back().client, asio::buffer(pattern(1000 + c, c)));
  }
  std::uint32_t c = 0;
  for (Ends& ends : all) {
    CHECK(readExactly(ends.server, 1000 + c) == pattern(1000 + c, c));
    ++c;
  }
  CHECK(setup.relay.bytesUp() == 20 * 1000 + 190);
  CHECK(setup.relay.bytesDown() == 0);
}

TEST_CASE("the end of one direction is forwarded, and the other direction continues") {
  Setup setup;
  Ends ends = setup.open();
  asio::write(ends.client, asio::buffer(pattern(300'000, 1)));
  ends.client.shutdown(tcp::socket::shutdown_send);
  CHECK((readExactly(ends.server, 300'000) == pattern(300'000, 1)));
  CHECK(readError(ends.server) == asio::error::eof);
  asio::write(ends.server, asio::buffer(pattern(300'000, 2)));
  ends.server.close();
  CHECK((readExactly(ends.client, 300'000) == pattern(300'000, 2)));
  CHECK(readError(ends.client) == asio::error::eof);
}

TEST_CASE("a reset is forwarded") {
  Setup setup;
  Ends ends = setup.open();
  ends.server.set_option(asio::socket_base::linger(true, 0));
  ends.server.close();
  CHECK(readError(ends.client) == asio::error::connection_reset);
}

TEST_CASE("a cut resets every connection, and new ones work") {
  Setup setup;
  Ends first = setup.open();
  Ends second = setup.open();
  asio::write(second.client, asio::buffer(pattern(10, 1)));
  CHECK(readExactly(second.server, 10) == pattern(10, 1));
  setup.relay.cut();
  for (tcp::socket* socket : {&first.client, &first.server, &second.client, &second.server}) {
    CHECK(readError(*socket) == asio::error::connection_reset);
  }
  Ends third = setup.open();
  asio::write(third.server, asio::buffer(pattern(10, 2)));
  CHECK(readExactly(third.client, 10) == pattern(10, 2));
}

TEST_CASE("a stall delays bytes and the end of the stream, and loses nothing") {
  Setup setup;
  Ends ends = setup.open();
  asio::write(ends.client, asio::buffer(pattern(10, 1)));
  CHECK(readExactly(ends.server, 10) == pattern(10, 1));
  setup.relay.stall(true);
  asio::write(ends.client, asio::buffer(pattern(1000, 2)));
  ends.client.shutdown(tcp::socket::shutdown_send);
  asio::write(ends.server, asio::buffer(pattern(1000, 3)));
  CHECK_FALSE(becomesReadable(ends.server.native_handle()));
  CHECK_FALSE(becomesReadable(ends.client.native_handle()));
  CHECK(setup.relay.bytesUp() == 10);
  CHECK(setup.relay.bytesDown() == 0);
  setup.relay.stall(false);
  CHECK(readExactly(ends.server, 1000) == pattern(1000, 2));
  CHECK(readError(ends.server) == asio::error::eof);
  CHECK(readExactly(ends.client, 1000) == pattern(1000, 3));
}

TEST_CASE("a stall in the middle of a flood stops it immediately") {
  Setup setup;
  Ends ends = setup.open();
  const Bytes bytes = pattern(20'000'000, 1);
  std::thread sender([&] { asio::write(ends.client, asio::buffer(bytes)); });
  Bytes got = readExactly(ends.server, 1'000'000);
  setup.relay.stall(true);
  const std::uint64_t forwarded = setup.relay.bytesUp();
  const Bytes held =
      readExactly(ends.server, forwarded - got.size());  // the bytes that crossed before the stall
  got.insert(got.end(), held.begin(), held.end());
  CHECK_FALSE(becomesReadable(ends.server.native_handle()));
  CHECK(setup.relay.bytesUp() == forwarded);
  setup.relay.stall(false);
  const Bytes rest = readExactly(ends.server, bytes.size() - got.size());
  got.insert(got.end(), rest.begin(), rest.end());
  sender.join();
  CHECK((got == bytes));
}

TEST_CASE("a stall also delays bytes that the relay has already read") {
  Setup setup;
  Ends ends = setup.open();
  const std::size_t total = writeUntilBlocked(ends.client);
  setup.relay.stall(true);
  const std::uint64_t forwarded = setup.relay.bytesUp();
  REQUIRE(forwarded < total);
  readExactly(ends.server, forwarded);  // this makes room for more bytes
  CHECK_FALSE(becomesReadable(ends.server.native_handle()));
  CHECK(setup.relay.bytesUp() == forwarded);
  setup.relay.stall(false);
  readExactly(ends.server, total - forwarded);
  CHECK(setup.relay.bytesUp() == total);
}

TEST_CASE("during a stall, resets and new connections are not forwarded") {
  Setup setup;
  Ends ends = setup.open();
  setup.relay.stall(true);
  ends.client.set_option(asio::socket_base::linger(true, 0));
  ends.client.close();
  tcp::socket late = setup.connect();
  CHECK_FALSE(becomesReadable(ends.server.native_handle()));
  CHECK_FALSE(becomesReadable(setup.acceptor.native_handle()));
  setup.relay.stall(false);
  CHECK(readError(ends.server) == asio::error::connection_reset);
  tcp::socket server = setup.acceptor.accept();
  asio::write(late, asio::buffer(pattern(10, 1)));
  CHECK(readExactly(server, 10) == pattern(10, 1));
}

TEST_CASE("a receiver that does not read stops the sender") {
  Setup setup;
  Ends ends = setup.open();
  const std::size_t total = writeUntilBlocked(ends.client);
  // The relay holds 256 KiB; the kernel's buffers of two connections hold the rest.
  CHECK(total < (std::size_t{40} << 20));
  CHECK((readExactly(ends.server, total) == Bytes(total)));
}

TEST_CASE("a delay holds every byte for at least that time, in order") {
  Setup setup;
  Ends ends = setup.open();
  setup.relay.delay(5ms, 3);
  const auto start = std::chrono::steady_clock::now();
  const Bytes bytes = pattern(100'000, 1);
  std::thread sender([&] {
    // Many small pieces, each with its own delay.
    for (std::size_t at = 0; at < bytes.size(); at += 1000) {
      asio::write(ends.client, asio::buffer(bytes.data() + at, 1000));
    }
  });
  CHECK(readExactly(ends.server, 1) == Bytes(1, bytes[0]));
  CHECK(std::chrono::steady_clock::now() - start >= 5ms);
  CHECK((readExactly(ends.server, bytes.size() - 1) == Bytes(bytes.begin() + 1, bytes.end())));
  asio::write(ends.server, asio::buffer(bytes.data(), 1));
  CHECK(readExactly(ends.client, 1) == Bytes(1, bytes[0]));
  CHECK(std::chrono::steady_clock::now() - start >= 10ms);
  sender.join();
  setup.relay.delay(0us);
  asio::write(ends.client, asio::buffer(bytes));
  CHECK((readExactly(ends.server, bytes.size()) == bytes));
}

TEST_CASE("a delay holds up to 64 MiB and no more") {
  Setup setup;
  Ends ends = setup.open();
  setup.relay.delay(1h);
  const std::size_t total = writeUntilBlocked(ends.client);
  CHECK(total >= (std::size_t{64} << 20));
  CHECK(total < (std::size_t{100} << 20));
  CHECK(setup.relay.bytesUp() == 0);
}

TEST_CASE("a target that refuses resets the connection") {
  Setup setup;
  setup.acceptor.close();
  tcp::socket client = setup.connect();
  CHECK(readError(client) == asio::error::connection_reset);
}

TEST_CASE("destroying the relay resets the open connections") {
  auto setup = std::make_unique<Setup>();
  asio::io_context context;
  tcp::socket client(context);
  client.connect({asio::ip::address_v4::loopback(), setup->relay.port()});
  tcp::socket server = setup->acceptor.accept(context);
  asio::write(client, asio::buffer(pattern(10, 1)));
  CHECK(readExactly(server, 10) == pattern(10, 1));
  setup.reset();
  CHECK(readError(client) == asio::error::connection_reset);
  CHECK(readError(server) == asio::error::connection_reset);
}

}  // namespace
}  // namespace cleave::test
