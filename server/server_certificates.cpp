#include "server/server_certificates.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "common/core/error.h"
#include "common/core/log.h"

namespace cleave {

void ServerCertificates::reload() {
  if (!settings_.enabled) return;
  try {
    tls_ = openTls(settings_, TlsRole::server);
    processLog()->info("SIGHUP: reloaded the certificates");
  } catch (const Error& error) {
    processLog()->error("SIGHUP: {}; keeping the current certificates; {}", error.what(),
                        error.hint());
  }
}

boost::asio::awaitable<void> ServerCertificates::watch(boost::asio::any_io_executor io) const {
  boost::asio::steady_timer day(io);
  while (true) {
    day.expires_after(std::chrono::hours(24));
    co_await day.async_wait(boost::asio::use_awaitable);
    if (tls_) warnOfEnd(*tls_);
  }
}

}  // namespace cleave
