// cleave-relay's classes over real sockets: who may register, and what happens to clients.
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/core/log.h"
#include "tests/support/error_code.h"
#include "tests/support/network/sockets.h"
#include "tools/relay/relay.h"

namespace cleave::relay {
namespace {

using namespace cleave::test;

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

const std::string kSecret = "a secret of more than 16 bytes";
const tcp::endpoint kAnyPort(asio::ip::address_v4::loopback(), 0);
constexpr RelayRequest kControl = {.purpose = RelayPurpose::control, .hasTls = true};

RelayRequest forClient(std::uint64_t client) {
  return {.purpose = RelayPurpose::client, .hasTls = true, .client = client};
}

Settings onLoopback() {
  Settings settings;
  settings.clients = kAnyPort;
  return settings;
}

// A relay on its own thread.
class World {
 public:
  explicit World(Settings settings = onLoopback()) {
    processLog()->set_level(spdlog::level::err);
    settings.server = kAnyPort;
    settings.secret = kSecret;
    relay_ = std::make_unique<Relay>(relayContext_, settings);
    thread_ = std::thread([this] { relayContext_.run(); });
  }
  ~World() {
    asio::post(relayContext_, [this] { relay_->stop(); });
    thread_.join();
  }

  tcp::socket client() { return connect(relay_->clientsEndpoint().port()); }
  // Runs a coroutine of the server's half.
  template <typename T>
  T run(asio::awaitable<T> work) {
    auto result = asio::co_spawn(context_, std::move(work), asio::use_future);
    context_.restart();
    context_.run();
    return result.get();
  }
  SharedSocket join(RelayRequest request, const std::string& secret = kSecret) {
    const auto socket = std::make_shared<tcp::socket>(connect(relay_->serverEndpoint().port()));
    run(joinRelay(socket, secret, request));
    return socket;
  }
  // The next event other than a Ping.
  RelayEvent event(const SharedSocket& control) {
    RelayEvent event;
    do {
      event = run(readRelayEvent(*control));
    } while (event.kind == RelayEvent::Kind::ping);
    return event;
  }
  // A client and the server's connection for it.
  Ends open(const SharedSocket& control) {
    tcp::socket socket = client();
    const RelayEvent arrival = event(control);
    return {std::move(socket), std::move(*join(forClient(arrival.client)))};
  }
  // Evaluates `question` on the relay's thread.
  template <typename Question>
  auto ask(Question question) {
    std::promise<decltype(question(*relay_))> answer;
    asio::post(relayContext_, [&] { answer.set_value(question(*relay_)); });
    return answer.get_future().get();
  }
  template <typename Question>
  void waitUntil(Question question) {
    while (!ask(question)) std::this_thread::sleep_for(1ms);
  }
  tcp::socket connectToRegister() { return connect(relay_->serverEndpoint().port()); }

 private:
  tcp::socket connect(std::uint16_t port) {
    tcp::socket socket(context_);
    socket.connect({asio::ip::address_v4::loopback(), port});
    return socket;
  }

  asio::io_context relayContext_;
  asio::io_context context_;
  std::unique_ptr<Relay> relay_;
  std::thread thread_;
};

TEST_CASE("a client's bytes reach the server and back, and each side can end its direction") {
  World world;
  const SharedSocket control = world.join(kControl);
  Ends ends = world.open(control);
  const Bytes up = pattern(3'000'000, 1);
  const Bytes down = pattern(5'000'000, 2);
  std::thread sender([&] {
    asio::write(ends.client, asio::buffer(up));
    ends.client.shutdown(tcp::socket::shutdown_send);
  });
  CHECK(readExactly(ends.server, up.size()) == up);
  CHECK(readError(ends.server) == asio::error::eof);
  sender.join();
  std::thread answerer([&] {
    asio::write(ends.server, asio::buffer(down));
    ends.server.shutdown(tcp::socket::shutdown_send);
  });
  CHECK(readExactly(ends.client, down.size()) == down);
  CHECK(readError(ends.client) == asio::error::eof);
  answerer.join();
  world.waitUntil([](Relay& relay) { return relay.pairs() == 0; });
  CHECK(world.ask([](Relay& relay) { return relay.bytesUp(); }) == up.size());
  CHECK(world.ask([](Relay& relay) { return relay.bytesDown(); }) == down.size());
}

TEST_CASE("the server learns the client's address") {
  World world;
  const SharedSocket control = world.join(kControl);
  const tcp::socket client = world.client();
  CHECK(world.event(control).address == asio::ip::address_v4::loopback());
}

TEST_CASE("a reset of one side resets the other") {
  World world;
  const SharedSocket control = world.join(kControl);
  Ends ends = world.open(control);
  closeWithReset(ends.server);
  CHECK(readError(ends.client) == asio::error::connection_reset);
  world.waitUntil([](Relay& relay) { return relay.pairs() == 0; });
}

TEST_CASE("a client waits while the server does not read, and the relay stores little") {
  World world;
  const SharedSocket control = world.join(kControl);
  Ends ends = world.open(control);
  ends.client.non_blocking(true);
  const Bytes piece(64 << 10);
  std::size_t written = 0;
  constexpr std::size_t kKernels = std::size_t{48} << 20;  // what both kernels may store
  for (auto last = now(); now() - last < 300ms && written < kKernels;) {
    error_code full;
    const std::size_t bytes = ends.client.write_some(asio::buffer(piece), full);
    written += bytes;
    if (bytes > 0) last = now();
  }
  CHECK(written < kKernels);
  CHECK(readExactly(ends.server, written).size() == written);
}

TEST_CASE("a server with another secret is refused, and detects a relay with another secret") {
  World world;
  CHECK(errorCode([&] { world.join(kControl, "another secret of 16 bytes"); }) == "wrong-secret");
  CHECK_FALSE(world.ask([](Relay& relay) { return relay.hasServer(); }));
  CHECK(world.ask([](Relay& relay) { return relay.refused(); }) == 1);
}

TEST_CASE("a peer that does not speak the relay's protocol is disconnected") {
  World world;
  tcp::socket peer = world.connectToRegister();
  asio::write(peer, asio::buffer(std::string(200, 'x')));
  error_code error;
  Bytes rest(1000);
  asio::read(peer, asio::buffer(rest), error);
  CHECK(error);
  // The client's port sends nothing by itself.
  const auto socket = std::make_shared<tcp::socket>(world.client());
  asio::write(*socket, asio::buffer(std::string("GET / HTTP/1.1\r\n\r\n")));
}

TEST_CASE("a connection for an unknown client is refused") {
  World world;
  const SharedSocket control = world.join(kControl);
  CHECK(errorCode([&] { world.join(forClient(17)); }) == "no-client");
}

TEST_CASE("a client that arrives before the server waits for it") {
  World world;
  Ends ends = {world.client(), world.connectToRegister()};
  world.waitUntil([](Relay& relay) { return relay.pending() == 1; });
  const SharedSocket control = world.join(kControl);
  tcp::socket server = std::move(*world.join(forClient(world.event(control).client)));
  asio::write(ends.client, asio::buffer(pattern(10, 1)));
  CHECK(readExactly(server, 10) == pattern(10, 1));
}

TEST_CASE("clients for which the server opens no connection are limited in number and time") {
  Settings settings = onLoopback();
  settings.maxPending = 3;
  settings.pendingTime = 400ms;
  World world(settings);
  const SharedSocket control = world.join(kControl);
  std::vector<tcp::socket> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(world.client());
  world.waitUntil([](Relay& relay) { return relay.pending() == 3; });
  tcp::socket fourth = world.client();
  CHECK(readError(fourth));
  for (tcp::socket& client : clients) CHECK(readError(client));
  CHECK(world.ask([](Relay& relay) { return relay.pending(); }) == 0);
  CHECK(world.ask([](Relay& relay) { return relay.refused(); }) == 4);
}

TEST_CASE("connected clients are limited in number") {
  Settings settings = onLoopback();
  settings.maxConnections = 2;
  World world(settings);
  const SharedSocket control = world.join(kControl);
  const Ends first = world.open(control);
  const Ends second = world.open(control);
  tcp::socket third = world.client();
  CHECK(readError(third));
}

TEST_CASE("a pair without a byte for too long is ended") {
  Settings settings = onLoopback();
  settings.idleTime = 300ms;
  World world(settings);
  const SharedSocket control = world.join(kControl);
  Ends ends = world.open(control);
  CHECK(readError(ends.client) == asio::error::connection_reset);
}

TEST_CASE("the newest registration replaces the one before it") {
  World world;
  const SharedSocket first = world.join(kControl);
  Ends open = world.open(first);
  const SharedSocket second = world.join(kControl);
  CHECK(world.event(first).kind == RelayEvent::Kind::replaced);
  CHECK(readError(*first));
  const Ends ends = world.open(second);
  asio::write(open.client, asio::buffer(pattern(10, 1)));  // existing pairs stay
  CHECK(readExactly(open.server, 10) == pattern(10, 1));
}

TEST_CASE("a server without TLS is refused if clients come from a network") {
  Settings settings = onLoopback();
  {
    World world(settings);
    world.join({.purpose = RelayPurpose::control, .hasTls = false});
  }
  settings.clients = {asio::ip::make_address("0.0.0.0"), 0};
  World world(settings);
  CHECK(errorCode([&] { world.join({.purpose = RelayPurpose::control, .hasTls = false}); }) ==
        "relay-needs-tls");
  world.join(kControl);
}

TEST_CASE("a secret must be long, and readable by its owner only") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("cleave-secret-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = (folder / "secret").string();
  const auto write = [&](const std::string& text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  };
  write("  " + kSecret + "\n");
  CHECK(readRelaySecret(path) == kSecret);
  write("too short\n");
  CHECK(errorCode([&] { readRelaySecret(path); }) == "bad-secret");
  write("\n");
  CHECK(errorCode([&] { readRelaySecret(path); }) == "bad-secret");
  write(kSecret);
  std::filesystem::permissions(path, std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  CHECK(errorCode([&] { readRelaySecret(path); }) == "key-readable");
  CHECK(errorCode([&] { readRelaySecret(path + "none"); }) == "cannot-read");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cleave::relay
