#include "server/access/server_certificates.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <filesystem>

#include "common/core/error.h"
#include "common/core/log.h"

namespace cleave {

std::shared_ptr<const TlsContext> ServerCertificates::openEdges() const {
  if (!settings_.enabled || !edgesFolder_) return nullptr;
  for (const char* name : {"ca.crt", "client.crt", "client.key"}) {
    const std::string path = *edgesFolder_ + "/" + name;
    if (::access(path.c_str(), R_OK) == 0) continue;
    throw UsageError(
        "no-certificates",
        "cannot read " + path +
            ", which this server needs to connect to those in edges.allow: " + std::strerror(errno),
        "make it where the CA is: cleave-server certs client NAME, in which NAME "
        "stands for this server; then copy ca.crt, client.crt and client.key to " +
            *edgesFolder_ + " (edges.folder)");
  }
  return openTls({true, *edgesFolder_}, TlsRole::client);
}

void ServerCertificates::reload() {
  if (!settings_.enabled) return;
  try {
    const auto loaded = openTls(settings_, TlsRole::server);
    ofEdges_ = openEdges();
    tls_ = loaded;
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
    if (ofEdges_) warnOfEnd(*ofEdges_);
  }
}

}  // namespace cleave
