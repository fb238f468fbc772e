// Lets a coroutine of the io thread run a function on another thread.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <utility>

namespace cleave {

// Passes `function` to `post`, which runs it on another thread. The coroutine resumes on `io` when
// the function returns, and rethrows its exceptions.
template <typename Executor, typename Post, typename Function>
boost::asio::awaitable<void> runThrough(Executor io, Post post, Function function) {
  // A named variable, because GCC 12 destroys temporaries of a co_await expression twice.
  auto initiate = [io](auto handler, Post posting, Function inner) {
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    posting([io, shared, inner = std::move(inner)]() mutable {
      std::exception_ptr error;
      try {
        inner();
      } catch (...) {
        error = std::current_exception();
      }
      boost::asio::post(io, [shared, error] { (*shared)(error); });
    });
  };
  co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>&,
                                       void(std::exception_ptr)>(
      initiate, boost::asio::use_awaitable, post, function);
}

}  // namespace cleave
