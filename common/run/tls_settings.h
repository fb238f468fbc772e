// The section `tls` of the configurations.
#pragma once

#include <memory>
#include <string>

#include "common/config/config.h"
#include "common/net/streams/tls.h"

namespace cleave {

struct TlsSettings {
  bool enabled = false;
  std::string folder = "certs";
};
// Throws UsageError.
TlsSettings readTlsSettings(Config& config);

// Null if TLS is not enabled. Logs a warning if a certificate expires soon. Throws UsageError.
std::shared_ptr<const TlsContext> openTls(const TlsSettings& settings, TlsRole role);
void warnOfEnd(const TlsContext& context);

}  // namespace cleave
