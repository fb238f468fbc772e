#include "tools/relay/forward.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <vector>

#include "common/net/streams/tcp.h"

namespace cleave::relay {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;  // per direction
// Maximum bytes that the kernel accepts before it has sent them, so that an urgent tensor does not
// wait in the relay.
constexpr std::size_t kUnsentBytes = std::size_t{64} << 10;
constexpr std::chrono::seconds kUnacknowledged{30};

void prepare(tcp::socket& socket) {
  sendWithoutDelay(socket.native_handle());
  limitUnsent(socket.native_handle(), kUnsentBytes);
  limitUnacknowledged(socket.native_handle(), kUnacknowledged);
}

// A failure resets both sides, which also ends the other direction.
asio::awaitable<void> forwardOneWay(std::shared_ptr<Pair> pair, tcp::socket& from, tcp::socket& to,
                                    std::uint64_t& bytes) {
  std::vector<std::byte> buffer(kBufferBytes);
  while (true) {
    const auto [readError, got] =
        co_await from.async_read_some(asio::buffer(buffer), asio::as_tuple(asio::use_awaitable));
    error_code error = readError;
    if (error == asio::error::eof) {
      to.shutdown(tcp::socket::shutdown_send, error);
      co_return;
    }
    if (!error) {
      const auto [writeError, sent] = co_await asio::async_write(
          to, asio::buffer(buffer.data(), got), asio::as_tuple(asio::use_awaitable));
      bytes += sent;
      pair->lastByte = now();
      error = writeError;
    }
    if (error) {
      closeWithReset(from);
      closeWithReset(to);
      co_return;
    }
  }
}

}  // namespace

void closeWithReset(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket.close(ignored);
}

asio::awaitable<void> forward(std::shared_ptr<Pair> pair) {
  using namespace asio::experimental::awaitable_operators;
  prepare(*pair->client);
  prepare(*pair->server);
  co_await (forwardOneWay(pair, *pair->client, *pair->server, pair->up) &&
            forwardOneWay(pair, *pair->server, *pair->client, pair->down));
}

}  // namespace cleave::relay
