#include "common/net/streams/connect_to.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace cleave {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

struct Lookup {
  explicit Lookup(const asio::any_io_executor& io) : resolver(io), ended(io) {}
  tcp::resolver resolver;
  asio::steady_timer ended;
  boost::system::error_code error = asio::error::timed_out;
  tcp::resolver::results_type endpoints;
};

// The system's resolver cannot be interrupted. If the wait for it is cancelled or times out, the
// lookup goes on in the background.
asio::awaitable<tcp::resolver::results_type> resolve(Endpoint endpoint) {
  constexpr std::chrono::seconds kDeadline{30};
  const auto executor = co_await asio::this_coro::executor;
  const auto lookup = std::make_shared<Lookup>(executor);
  lookup->ended.expires_after(kDeadline);
  const std::string port = std::to_string(endpoint.port);
  lookup->resolver.async_resolve(endpoint.host, port, [lookup](auto error, auto endpoints) {
    lookup->error = error;
    lookup->endpoints = std::move(endpoints);
    lookup->ended.expires_at(asio::steady_timer::time_point::min());
  });
  boost::system::error_code early;
  co_await lookup->ended.async_wait(asio::redirect_error(asio::use_awaitable, early));
  if (lookup->error) throw boost::system::system_error(lookup->error);
  co_return lookup->endpoints;
}

}  // namespace

asio::awaitable<tcp::socket> connectTo(Endpoint endpoint) {
  using namespace asio::experimental::awaitable_operators;
  constexpr std::chrono::seconds kDeadline{5};
  const auto executor = co_await asio::this_coro::executor;
  const auto endpoints = co_await resolve(std::move(endpoint));
  tcp::socket socket(executor);
  asio::steady_timer deadline(executor, kDeadline);
  // The result is a tuple because || waits for the first success: if a refused connection threw an
  // error, || would wait for the deadline.
  const auto first =
      co_await (asio::async_connect(socket, endpoints, asio::as_tuple(asio::use_awaitable)) ||
                deadline.async_wait(asio::use_awaitable));
  if (first.index() == 1) throw boost::system::system_error(asio::error::timed_out);
  const boost::system::error_code error = std::get<0>(std::get<0>(first));
  if (error) throw boost::system::system_error(error);
  co_return socket;
}

bool isLoopback(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  return !error && parsed.is_loopback();
}

bool isLoopbackHost(const std::string& host) { return isLoopback(host) || host == "localhost"; }

}  // namespace cleave
