// A time limit for sessions that a client could otherwise keep open forever.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <memory>

#include "common/net/connection.h"

namespace cleave {

// Ends `connection` with `error` after `time`, unless the returned timer is destroyed first. io
// thread.
[[nodiscard]] boost::asio::steady_timer failAfter(std::chrono::milliseconds time,
                                                  std::shared_ptr<Connection> connection,
                                                  std::exception_ptr error,
                                                  const boost::asio::any_io_executor& io);

}  // namespace cleave
