#include "server/run/deadline.h"

#include <utility>

namespace cleave {

boost::asio::steady_timer failAfter(std::chrono::milliseconds time,
                                    std::shared_ptr<Connection> connection,
                                    std::exception_ptr error,
                                    const boost::asio::any_io_executor& io) {
  boost::asio::steady_timer timer(io, time);
  timer.async_wait([connection = std::move(connection),
                    error = std::move(error)](const boost::system::error_code& cancelled) {
    if (!cancelled) connection->fail(error);
  });
  return timer;
}

}  // namespace cleave
