// The certificates of a running server: reloaded on request, and checked every day. io thread,
// except the constructor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>

#include "common/net/tls.h"
#include "common/run/tls_settings.h"

namespace cleave {

class ServerCertificates {
 public:
  // Borrows `settings`. Throws the errors of openTls().
  explicit ServerCertificates(const TlsSettings& settings)
      : settings_(settings), tls_(openTls(settings, TlsRole::server)) {}

  // The certificates for new connections; null: no TLS.
  const std::shared_ptr<const TlsContext>& tls() const { return tls_; }
  // Reloads them and logs that. If they are invalid, the current ones stay in use.
  void reload();
  // Logs a warning once per day while one of them expires soon. Runs until its io context ends.
  boost::asio::awaitable<void> watch(boost::asio::any_io_executor io) const;

 private:
  const TlsSettings& settings_;
  std::shared_ptr<const TlsContext> tls_;
};

}  // namespace cleave
