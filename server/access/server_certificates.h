// The certificates of a running server: reloaded on request, and checked every day. io thread,
// except the constructor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/net/streams/tls.h"
#include "common/run/tls_settings.h"

namespace cleave {

class ServerCertificates {
 public:
  // Borrows `settings`. `edges`: folder with the certificate for connecting to other servers;
  // nullopt: this server connects to none. Throws the errors of openTls().
  explicit ServerCertificates(const TlsSettings& settings,
                              std::optional<std::string> edges = std::nullopt)
      : settings_(settings),
        edgesFolder_(std::move(edges)),
        tls_(openTls(settings, TlsRole::server)),
        ofEdges_(openEdges()) {}

  // The certificates for new connections; null: no TLS.
  const std::shared_ptr<const TlsContext>& tls() const { return tls_; }
  // The certificate for connecting to other servers; null: no TLS, or this server connects to none.
  const std::shared_ptr<const TlsContext>& ofEdges() const { return ofEdges_; }
  // Reloads them and logs that. If they are invalid, the current ones stay in use.
  void reload();
  // Logs a warning once per day while one of them expires soon. Runs until its io context ends.
  boost::asio::awaitable<void> watch(boost::asio::any_io_executor io) const;

 private:
  std::shared_ptr<const TlsContext> openEdges() const;

  const TlsSettings& settings_;
  const std::optional<std::string> edgesFolder_;
  std::shared_ptr<const TlsContext> tls_, ofEdges_;
};

}  // namespace cleave
