#include "common/run/tls_settings.h"

#include "common/core/log.h"

namespace cleave {

TlsSettings readTlsSettings(Config& config) {
  TlsSettings settings;
  settings.enabled = config.boolean("tls.enabled", settings.enabled);
  settings.folder = config.text("tls.folder", settings.folder);
  return settings;
}

std::shared_ptr<const TlsContext> openTls(const TlsSettings& settings, TlsRole role) {
  if (!settings.enabled) return nullptr;
  auto context = TlsContext::load(settings.folder, role);
  warnOfEnd(*context);
  return context;
}

void warnOfEnd(const TlsContext& context) {
  const std::string warning = context.warning();
  if (!warning.empty()) processLog()->warn("{}", warning);
}

}  // namespace cleave
