// The tasks that a link posts to its session's codec queue.
#include "common/link/codec_tasks.h"

#include <openssl/sha.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tests/support/error_code.h"

using namespace cleave;
using boost::asio::ip::tcp;

namespace {

// Tasks on the io thread; a test polls the io_context.
struct Tasks {
  explicit Tasks(tcp::socket socket, boost::asio::io_context& io)
      : connection(std::make_shared<Connection>(std::move(socket), ConnectionOptions{})),
        slot(std::make_shared<ConnectionSlot>(
            io.get_executor(), [](std::exception_ptr) {}, std::make_shared<ProgressCount>(0))),
        tasks(std::make_shared<CodecTasks>(TensorCodecOptions{}, std::make_shared<BufferPool>(),
                                           slot)) {
    slot->attach(connection, 0);
  }

  std::shared_ptr<Connection> connection;
  std::shared_ptr<ConnectionSlot> slot;
  std::shared_ptr<CodecTasks> tasks;
};

}  // namespace

TEST_CASE("codec tasks run later and in order, and may own objects that cannot be copied") {
  boost::asio::io_context io;
  Tasks all(tcp::socket(io), io);
  CHECK(!all.tasks->any());
  std::vector<int> order;
  for (int j = 0; j < 3; ++j) {
    all.tasks->post(
        [&order, owned = std::make_unique<int>(j)](TensorCodecs&) { order.push_back(*owned); });
  }
  CHECK(order.empty());
  CHECK(all.tasks->any());
  io.poll();
  CHECK(order == std::vector<int>{0, 1, 2});
  CHECK(!all.tasks->any());
}

TEST_CASE("a digest computed in pieces is correct and lets other tasks run in between") {
  boost::asio::io_context io;
  Tasks all(tcp::socket(io), io);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{2} << 20) + 1}) {
    CAPTURE(size);
    std::vector<std::byte> bytes(size);
    for (std::size_t j = 0; j < size; ++j) bytes[j] = static_cast<std::byte>(j % 251);
    std::string expected(SHA256_DIGEST_LENGTH, '\0');
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), size,
           reinterpret_cast<unsigned char*>(expected.data()));
    std::vector<std::string> done;
    all.tasks->digest(bytes, [&](std::string sha256) { done.push_back(std::move(sha256)); });
    all.tasks->post([&](TensorCodecs&) { done.push_back("a step's tensor"); });
    io.restart();
    io.poll();
    REQUIRE(done.size() == 2);
    const bool isLong = size > (std::size_t{1} << 20);
    CHECK((done[isLong ? 1 : 0] == expected));
  }
}

TEST_CASE("an exception from a codec task ends the connection, and later tasks still run") {
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  tcp::socket socket(io), peer(io);
  socket.connect(acceptor.local_endpoint());
  acceptor.accept(peer);
  Tasks all(std::move(socket), io);
  struct : FrameSink {
    std::span<std::byte> placePayload(const FrameHeader&, std::span<const std::byte>) override {
      return {};
    }
    void receivedFrame(const FrameHeader&, std::span<const std::byte>,
                       std::span<const std::byte>) override {}
  } sink;
  std::exception_ptr ended;
  boost::asio::co_spawn(io, all.connection->run(sink),
                        [&](std::exception_ptr error, const std::string&) { ended = error; });
  bool ran = false;
  all.tasks->post([](TensorCodecs&) { throw ProtocolError("bad-payload", "sentence"); });
  all.tasks->post([&](TensorCodecs&) { ran = true; });
  peer.close();
  io.run();
  CHECK(ran);
  CHECK(!all.tasks->any());
  REQUIRE(ended);
  CHECK(errorCode([&] { std::rethrow_exception(ended); }) == "bad-payload");
}
