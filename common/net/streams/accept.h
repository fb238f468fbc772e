// Accepting connections until the acceptor is closed.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <utility>

namespace cleave {

// Passes each accepted connection to `admit`, and the error of each failed accept to `failed`.
// Pauses after an error, which usually means that no descriptors are left. The acceptor must
// outlive the coroutine.
template <typename Protocol>
boost::asio::awaitable<void> acceptAll(
    boost::asio::basic_socket_acceptor<Protocol>& acceptor,
    std::function<void(typename Protocol::socket)> admit,
    std::function<void(const boost::system::error_code&)> failed) {
  namespace asio = boost::asio;
  constexpr std::chrono::milliseconds kPause{100};
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
    if (!acceptor.is_open()) co_return;
    if (!error) {
      admit(std::move(socket));
      continue;
    }
    failed(error);
    asio::steady_timer pause(acceptor.get_executor(), kPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

}  // namespace cleave
